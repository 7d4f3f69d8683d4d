"""A second interpreter of programs, rank by rank and element by element, in Fractions or in rounded arithmetic."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from lockstep.oracle.events import (
    ActAlone,
    Backward,
    CopyGradients,
    DropLoss,
    Duplicate,
    Finish,
    Move,
    Step,
    SwapWeights,
    Write,
    ZeroGrad,
)
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.fingerprint import contributions
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.oracle.rounding import round_to_nearest

STILL = (ActAlone, CopyGradients, DropLoss, Duplicate, Move, SwapWeights)  # after which everything is as before

Gradient = list[Any] | None  # the elements of one parameter's gradient on one rank
Number = Callable[[Fraction, str], Any]  # makes a number of that format's arithmetic


class SecondInterpreter:
    """Says the same as `oracle.events`, a rank, a parameter and an element at a time.

    ``number`` decides the arithmetic: Fractions, or NumPy's scalars of the parameter's own format, which round.
    ``order``: in which order of ranks a mean is summed. ``way``: what is averaged: all that is there; what is "new"
    since the last average, which is added to it; or each micro-batch as it comes, "at once", with what is there; or all
    of it in float32, times the reciprocal where others divide, and "kept" so until the step. All but "" and "kept"
    average each of several backwards that synchronize. What is tied has one place here, under its first name; its
    gradients come one by one. Nothing here is shared with the interpreter under test.
    """

    def __init__(
        self, scenario: Scenario, averaging: str, unused: str, number: Number, order: list[int], way: str = ""
    ) -> None:
        self.scenario, self.averaging, self.unused, self.number, self.order = scenario, averaging, unused, number, order
        self.way = way
        self.counts = [int(np.prod(parameter.shape, dtype=int)) for parameter in scenario.parameters]
        self.place = [n if p.tied is None else p.tied for n, p in enumerate(scenario.parameters)]  # by name
        start = 0
        self.weights: list[list[Any]] = []
        for index, count in enumerate(self.counts):
            self.weights.append([self.of(index, Fraction(start + element + 1)) for element in range(count)])
            start += count
        self.gradients: list[list[Gradient]] = [[None] * len(self.counts) for _ in range(scenario.world_size)]
        self.averages: list[Gradient] = [None] * len(self.counts)  # beside them, where only what is new is averaged

    def of(self, parameter: int, value: Fraction) -> Any:
        return self.number(value, self.scenario.parameters[parameter].dtype)

    def group(self, parameter: int) -> int:
        """The number of the group that it is in; 0 is that of all which no other names."""
        return next((n for n, group in enumerate(self.scenario.groups, 1) if parameter in group.parameters), 0)

    def run(self) -> tuple[dict[int, list[Gradient]], dict[int, list[list[Any]]]]:
        """Gradients after each Finish and parameters after each Step and Write."""
        gradients, parameters = {}, {}
        batch = 0
        for place, event in enumerate(self.scenario.program):
            if isinstance(event, Backward):
                if event.meanwhile in ("drops gradients", "zeroes gradients"):
                    self.zero(event.meanwhile == "drops gradients")
                for number in range(event.backwards):
                    for rank in range(self.scenario.world_size):
                        self.backward(batch, event, rank, number)
                    last = number == event.backwards - 1
                    if (self.way == "at once" and not (last and event.synchronize)) or (
                        self.way in ("new", "again") and event.synchronize and not last
                    ):
                        self.average()
                batch += 1
            elif isinstance(event, Finish):
                gradients[place] = self.by_name(self.average())
            elif isinstance(event, Step):
                there = self.averages if self.way == "new" else self.gradients[0]
                for parameter, gradient in enumerate(there):
                    if gradient is not None and (event.groups is None or self.group(parameter) in event.groups):
                        rate = self.of(parameter, Fraction(self.scenario.learning_rate))
                        old = self.weights[parameter]
                        self.weights[parameter] = [p - rate * type(p)(g) for p, g in zip(old, gradient, strict=True)]
                parameters[place] = self.by_name(self.weights)
            elif isinstance(event, Write):
                for parameter in event.parameters:
                    self.weights[parameter] = [self.of(parameter, Fraction(0)) - p for p in self.weights[parameter]]
                parameters[place] = self.by_name(self.weights)
            elif isinstance(event, ZeroGrad):
                self.zero(event.set_to_none)
            elif not isinstance(event, STILL):
                raise NotImplementedError(f"{event!r}")
        return gradients, parameters

    def zero(self, to_none: bool) -> None:
        """Every gradient that is there is dropped, or zero."""
        for mine in (*self.gradients, self.averages):
            for parameter, gradient in enumerate(mine):
                if gradient is not None:
                    mine[parameter] = None if to_none else [self.of(parameter, Fraction(0))] * len(gradient)

    def by_name(self, values: list[Any]) -> list[Any]:
        """The values of each name, from those of each place."""
        return [values[place] for place in self.place]

    def average(self) -> list[Gradient]:
        """What every rank has from here on."""
        mean = [self.mean(parameter) for parameter in range(len(self.counts))]
        if self.way == "new":
            mean = [added(*pair) for pair in zip(self.averages, mean, strict=True)]
            self.averages, left = [None if g is None else list(g) for g in mean], [None] * len(mean)
            self.gradients = [list(left) for _ in self.gradients]
        else:
            self.gradients = [[None if g is None else list(g) for g in mean] for _ in self.gradients]
        return mean

    def backward(self, batch: int, event: Backward, rank: int, number: int) -> None:
        """Adds the gradient of the mean of the rank's samples' losses, or the part of it that this backward brings."""
        per_rank = len(event.orders) // self.scenario.world_size
        mine = range(rank * per_rank, (rank + 1) * per_rank)
        for parameter in dict.fromkeys(parameter for sample in mine for parameter in event.orders[sample]):
            place, count, new = self.place[parameter], self.counts[parameter], []
            for element in range(count):
                brought = (
                    event.backwards == 1 or event.forwards == 1 or (parameter + element) % event.forwards == number
                )
                used = [s for s in mine if brought and parameter in event.orders[s]]
                total = sum((self.contribution(batch, s, parameter, element) for s in used), Fraction(0))
                value = self.of(parameter, total / per_rank * 2**self.scenario.caller.doublings)
                if self.scenario.probe == "quadratic":  # d/dp of c * p * p / 2
                    half = value / self.of(parameter, Fraction(2))
                    value = half * self.weights[place][element] + half * self.weights[place][element]
                new.append(value)
            self.gradients[rank][place] = added(self.gradients[rank][place], new)

    def contribution(self, batch: int, sample: int, parameter: int, element: int) -> Fraction:
        """What `test_fingerprint` looks at."""
        return Fraction(int(contributions(self.scenario)[batch][parameter][sample][element]))

    def mean(self, parameter: int) -> Gradient:
        """Over ranks, one without a gradient counting as zero."""
        ranks, count = self.scenario.world_size, self.counts[parameter]
        if all(mine[parameter] is None for mine in self.gradients):
            zero = self.unused == "zero" and self.scenario.parameters[parameter].trainable
            return [self.of(parameter, Fraction(0))] * count if zero else None
        terms = [mine[parameter] or [self.of(parameter, Fraction(0))] * count for mine in self.gradients]
        form = self.scenario.parameters[parameter].dtype
        if self.way == "kept" and FORMATS[form].bytes == 2:
            form = "float32"
            terms = [[np.float32(value) for value in term] for term in terms]
        n, reciprocal = self.number(Fraction(ranks), form), self.number(Fraction(1, ranks), form)
        if self.averaging == "divide then sum" and self.way != "kept":
            terms = [[value / n for value in term] for term in terms]
        elif self.averaging != "sum then divide":
            terms = [[value * reciprocal for value in term] for term in terms]
        sums = []
        for element in range(count):
            first, *others = (terms[rank][element] for rank in self.order)
            for other in others:
                first = first + other
            sums.append(first)
        if self.averaging != "sum then divide":
            return sums
        return [total * reciprocal if self.way == "kept" else total / n for total in sums]


def added(one: Gradient, other: Gradient) -> Gradient:
    """None adds nothing."""
    return other if one is None else one if other is None else [x + y for x, y in zip(one, other, strict=True)]


def fraction(value: Fraction, name: str) -> Fraction:
    return value


def rounded(value: Fraction, name: str) -> Any:
    return np.asarray(round_to_nearest(value, name)).astype(FORMATS[name].numpy)[()]


def values(array: Any) -> list[Fraction] | None:
    return None if array is None else [Fraction(float(value)) for value in np.ravel(array)]


def agrees(
    scenario: Scenario,
    expectation: Expectation,
    averaging: str,
    unused: str,
    number: Number,
    order: list[int],
    way: str = "",
) -> None:
    """Asserts that both interpreters hold the same numbers, each array in its parameter's dtype and shape."""
    with np.errstate(over="ignore", invalid="ignore"):
        gradients, parameters = SecondInterpreter(scenario, averaging, unused, number, order, way).run()
    assert expectation.gradients.keys() == gradients.keys()
    assert expectation.parameters.keys() == parameters.keys()
    for told, computed in ((expectation.gradients, gradients), (expectation.parameters, parameters)):
        for place, arrays in told.items():
            for parameter, array, wanted in zip(scenario.parameters, arrays, computed[place], strict=True):
                assert values(array) == (None if wanted is None else [Fraction(float(value)) for value in wanted])
                if array is not None:
                    assert isinstance(array, np.ndarray)
                    assert array.dtype == FORMATS[parameter.dtype].numpy
                    assert array.shape == parameter.shape
