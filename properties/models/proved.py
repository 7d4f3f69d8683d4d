"""The expectation of a run: proved intervals for communicated values, bits for those that a rank computes by itself."""

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

Values = list[Any]  # by parameter or buffer: an array, an interval, or None


@dataclass(frozen=True)
class Expected:
    """By step the ``gradients`` and ``parameters``, by micro-batch and rank the ``buffers`` and what ``inputs`` get, by
    evaluation and rank the ``outputs``, and the ``inner`` ones of a user's own model: by module, what it gives.

    ``terms``: by step what each rank contributes, all parameters in a row; none in integers.
    """

    gradients: list[Values]
    parameters: list[Values]
    buffers: list[list[Values]]
    inputs: list[list[Values]]
    outputs: list[list[Values]]
    terms: list[list[Interval]]
    inner: Sequence[Sequence[Sequence[tuple[str, Any]]]] = ()


def expect(trial: Trial, scenario: ModelScenario, seen: ModelSeen) -> Expected:
    """The expectation from what rank 0 was ``seen`` to hold at the beginning of each step. Replays on its world.

    What may overflow on the way is not an example: UnsatisfiedAssumption.
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
    if scenario.model in EXACT and trial.claims.wire_dtype is None:  # which integers need not fit
        in_integers = exact.train(scenario, trial.claims.averaging)
        gradients, parameters = ([[_point(x, scenario.dtype) for x in each] for each in kind] for kind in in_integers)
        return Expected(gradients, parameters, buffers, inputs, outputs, [])
    terms, gradients, batch = [], [], 0
    for step, count in enumerate(scenario.local):
        batches = local[batch : batch + count + 1]
        batch += count + 1
        try:
            means, flat = _by_dtype(batches, seen["parameters"][0], trial)
        except lattice.Inexact as inexact:  # float16, in which gradients travel, may not hold their sum
            raise UnsatisfiedAssumption(str(inexact)) from None
        terms.append(flat)
        named = zip(seen["names"][0], means, report.result["trained"], strict=True)
        yours = bool(scenario.yours)
        gradients.append([m if (own if yours else scenario.trains(name, step)) else None for name, m, own in named])
    return Expected(gradients, report.result["parameters"], buffers, inputs, outputs, terms, report.result["inner"])


def _by_dtype(batches: Sequence[Sequence[Values]], like: Values, trial: Trial) -> tuple[Values, list[Interval]]:
    """The means, and what each rank contributes to those of the dtype that comes first: each dtype by itself, as a mean
    is rounded to it.
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
    """Arrays as text, bit for bit; None stays None."""
    return [None if array is None else array.tobytes().hex() for array in arrays]


def _point(value: lattice.Lattice | None, form: str) -> Inside | None:
    if value is None:
        return None
    values = lattice.to_float(value)
    return Inside(values, values, form)


def _contributions(batches: Sequence[Batch], like: Values, form: str) -> list[Interval]:
    """By rank, what it has of all gradients after some micro-batches; none counts as zero.

    A parameter's uses in all of them may be added in any order: whoever recomputes or gathers it for each use adds each
    by itself, and autograd first adds those of one micro-batch.
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
    ways = [terms] if wide == form else [terms, _contributions(batches, like, wide)]  # accumulated in either

    def taken(of_ranks: Sequence[Interval]) -> Interval:
        return enclosures.mean(of_ranks, trial.claims.averaging, wide, compressed).round(form)

    def in_turn(parts: Sequence[Batch]) -> list[Interval]:
        """Each part is averaged by itself, or on top of the average of those before."""
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
    """The faulty means that might lie in every interval: of a step, one rank missing or doubled, or a wrong divisor.

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
