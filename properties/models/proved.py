"""The expectation of a run: proved intervals for communicated values, and bits for values computed by a single rank."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle import enclosures, lattice
from lockstep.oracle.intervals import Interval, hull
from lockstep.oracle.state import Inside
from lockstep.properties.judging.wire import on_the_wire
from lockstep.properties.models import exact
from lockstep.properties.models.model_seen import ModelSeen
from lockstep.properties.models.partings import Batch, partings
from lockstep.properties.models.scenario import EXACT, ModelScenario
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job

Values = list[Any]  # an array, an interval, or None, by parameter or buffer


@dataclass(frozen=True)
class Expected:
    """The expected values.

    - ``gradients``, ``parameters``: by step.
    - ``buffers``, ``inputs`` (their gradients): by micro-batch and rank.
    - ``outputs``: by evaluation and rank; ``inner``: those of the modules of a user's own model.
    - ``terms``: by step the contribution of each rank, all parameters concatenated; empty for models in integers.
    """

    gradients: list[Values]
    parameters: list[Values]
    buffers: list[list[Values]]
    inputs: list[list[Values]]
    outputs: list[list[Values]]
    terms: list[list[Interval]]
    inner: Sequence[Sequence[Sequence[tuple[str, Any]]]] = ()


def expect(trial: Trial, scenario: ModelScenario, seen: ModelSeen) -> Expected:
    """The expectation, computed from the values that rank 0 was ``seen`` to hold at the beginning of each step.

    The replay runs on the trial's world. Raises UnsatisfiedAssumption if an intermediate value may overflow.
    """
    request = {
        "scenario": scenario.to_json(),
        "buffers": trial.claims.buffers,
        "parameters": [pack(each) for each in (seen["initial"][: len(seen["names"][0])], *seen["parameters"])],
        "gradients": [pack(each) for each in seen["gradients"]],
    }
    (report,) = trial.outcome(Job("lockstep.properties.models.replay:replay", json.dumps(request), 1))
    if report.result is None:
        raise RuntimeError(f"the replay of {scenario!r} failed: {report.error}")
    local, buffers, inputs, outputs = (report.result[name] for name in ("local", "buffers", "inputs", "outputs"))
    if scenario.model in EXACT and trial.claims.wire_dtype is None:  # integers need not fit the dtype on the wire
        in_integers = exact.train(scenario, trial.claims.averaging)
        gradients, parameters = ([[_point(x, scenario.dtype) for x in each] for each in kind] for kind in in_integers)
        return Expected(gradients, parameters, buffers, inputs, outputs, [])
    terms, gradients, batch = [], [], 0
    for step, count in enumerate(scenario.local):
        batches = local[batch : batch + count + 1]
        batch += count + 1
        try:
            means, flat = _by_dtype(batches, seen["parameters"][0], trial)
        except lattice.Inexact as inexact:  # the sum may overflow float16, in which gradients are sent
            raise UnsatisfiedAssumption(str(inexact)) from None
        terms.append(flat)
        named = zip(seen["names"][0], means, report.result["trained"], strict=True)
        yours = bool(scenario.yours)
        gradients.append([m if (own if yours else scenario.trains(name, step)) else None for name, m, own in named])
    return Expected(gradients, report.result["parameters"], buffers, inputs, outputs, terms, report.result["inner"])


def _by_dtype(batches: Sequence[Sequence[Values]], like: Values, trial: Trial) -> tuple[Values, list[Interval]]:
    """The means, and the contributions of each rank to those of the first dtype.

    Each dtype is treated separately, because a mean is rounded to it.
    """
    means, first = [None] * len(like), list[Interval]()
    for form in dict.fromkeys(parameter.dtype.name for parameter in like):
        mine = [index for index, parameter in enumerate(like) if parameter.dtype.name == form]
        of_form = [[[gradients[index] for index in mine] for gradients in batch] for batch in batches]
        shapes = [like[index] for index in mine]
        terms = _contributions(of_form, shapes, form)
        first = first or terms
        for index, mean in zip(mine, _means(terms, of_form, shapes, trial, form), strict=True):
            means[index] = mean
    return means, first


def pack(arrays: Sequence[Any]) -> list[str | None]:
    """Arrays as text that keeps all bits. None stays None."""
    return [None if array is None else array.tobytes().hex() for array in arrays]


def _point(value: lattice.Lattice | None, form: str) -> Inside | None:
    if value is None:
        return None
    values = lattice.to_float(value)
    return Inside(values, values, form)


def _contributions(batches: Sequence[Batch], like: Values, form: str) -> list[Interval]:
    """The contribution of each rank to all gradients after some micro-batches; None counts as zero.

    The uses of a parameter in all of them may be added in any order. Code that recomputes or gathers a parameter for
    each use adds each by itself, while autograd first adds those of one micro-batch.
    """
    most = max(len(uses) for uses in batches[0][0])

    def flat(gradients: Sequence[Sequence[Any]], use: int) -> Interval:
        found = [uses[use] if use < len(uses) else None for uses in gradients]
        pairs = zip(found, like, strict=True)
        return Interval.point(np.concatenate([(np.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs]))

    def of(rank: int) -> Interval:
        return enclosures.add([flat(batch[rank], use) for batch in batches for use in range(most)], form)

    return [of(rank) for rank in range(len(batches[0]))]


def _means(terms: list[Interval], batches: Sequence[Batch], like: Values, trial: Trial, form: str) -> Values:
    compressed, place = trial.claims.wire_dtype or "", 0
    wide = form if compressed else on_the_wire(form, trial.claims)
    # Gradients may be accumulated in either dtype.
    ways = [terms] if wide == form else [terms, _contributions(batches, like, wide)]

    def taken(of_ranks: Sequence[Interval]) -> Interval:
        return enclosures.mean(of_ranks, trial.claims.averaging, wide, compressed).round(form)

    def in_turn(parts: Sequence[Batch]) -> list[Interval]:
        """The sum of separately averaged parts, and the mean with each part averaged on top of the previous ones."""
        first, *others = (_contributions([part], like, wide) for part in parts)
        apart = [together := taken(first)]
        for of_ranks in others:
            apart.append(taken(of_ranks))
            together = taken([enclosures.add([together, own], wide) for own in of_ranks])
        return [enclosures.add(apart, form), together]

    means = [taken(way) for way in ways]
    for parts in partings(batches, trial.claims):
        means += in_turn(parts)
    mean = hull(*means)
    found: Values = []
    for index, parameter in enumerate(like):
        mine = slice(place, place := place + parameter.size)
        shape: Any = parameter.shape
        if any(use is not None for batch in batches for gradients in batch for use in gradients[index]):
            found.append(Inside(mean.low[mine].reshape(shape), mean.high[mine].reshape(shape), form))
        else:
            found.append(np.zeros_like(parameter) if trial.claims.unused == "zero" else None)
    return found


def unseen(expected: Expected, averaging: str, form: str, wire: str = "") -> list[str]:
    """The faulty means that might lie in every interval of a step: a rank missing or doubled, or a wrong divisor.

    ``wire``: see `oracle.enclosures`.
    """
    found = []
    for step, terms in enumerate(expected.terms):
        right = enclosures.mean(terms, averaging, form, wire)
        for name, fault in _faults(len(terms), averaging, form):
            wrong = fault(terms)
            if not ((wrong.low > right.high) | (wrong.high < right.low)).any():
                found.append(f"step {step}: {name}")
    return found


def _faults(ranks: int, averaging: str, form: str) -> list[tuple[str, Callable[[list[Interval]], Interval]]]:
    def weighing(rank: int, weight: float) -> Callable[[list[Interval]], Interval]:
        def fault(terms: list[Interval]) -> Interval:
            mine = terms[rank]
            terms = [*terms[:rank], Interval(mine.low * weight, mine.high * weight), *terms[rank + 1 :]]
            return enclosures.mean(terms, averaging, form)

        return fault

    def dividing(divisor: int) -> Callable[[list[Interval]], Interval]:
        def fault(terms: list[Interval]) -> Interval:
            total = enclosures.add(terms, form)
            return total.divide_by_positive(Interval.point(np.full(total.low.shape, float(divisor)))).round(form)

        return fault

    missing = [(f"rank {rank} is missing", weighing(rank, 0.0)) for rank in range(ranks)]
    doubled = [(f"rank {rank} counts twice", weighing(rank, 2.0)) for rank in range(ranks)]
    divisors = {1, ranks - 1, ranks + 1, ranks * ranks} - {0, ranks}
    return missing + doubled + [(f"divided by {each}, not {ranks}", dividing(each)) for each in sorted(divisors)]
