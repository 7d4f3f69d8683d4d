"""A guess at the cause, made only if the arithmetic fits every element of the wrong parameters exactly."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.oracle.events import Backward, Clip, Raise, Step, Unscale
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.initial import initial_parameters
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties.difference import Difference
from lockstep.properties.judging.judge import same_bits
from lockstep.properties.verdict import LawBroken


def guess(broken: LawBroken, expected: Expectation) -> str | None:
    """The known cause that gives exactly these values in every wrong parameter on every rank; None if there is none.

    One rank alone may mislead: the mean of 1 and 3 divided by two once more is rank 0's own gradient. After clipping
    all ranks may mislead: clipped to a norm of 1, a single gradient is 1 whatever it was.
    """
    difference, scenario = broken.difference, broken.scenario
    assert difference is not None
    if any(place <= difference.place for place in scenario.places(Clip)):
        return None
    fitting: dict[str, int] = {}
    wrong = 0
    for rank, report in enumerate(broken.outcome):
        result = report.result
        if result is None or (difference.place < 0 and rank != difference.rank):
            continue
        if rank in scenario.gone(difference.place):
            continue
        if difference.quantity == "gradient":
            if difference.place not in expected.gradients:
                return None  # gradients are not specified, as after some overflows
            pairs = zip(result["gradients"][difference.place], expected.gradients[difference.place], strict=True)
        elif difference.place < 0:
            pairs = zip(result["initial"], expected.initial, strict=True)
        else:
            return None  # the hypotheses do not cover values after a step
        for parameter, (seen, wanted) in enumerate(pairs):
            if isinstance(wanted, Inside):
                return None  # the hypotheses are exact values
            if not same_bits(seen, wanted):
                wrong += 1
                for words, values in _hypotheses(scenario, difference, rank, parameter, wanted):
                    if _equal(seen, values):
                        fitting[words] = fitting.get(words, 0) + 1
    return next((words for words, fits in fitting.items() if fits == wrong), None)


def _equal(seen: Any, values: Any) -> bool:
    if seen is None or values is None:
        return seen is None and values is None
    return np.array_equal(np.asarray(seen, dtype=np.float64), np.asarray(values, dtype=np.float64), equal_nan=True)


def _hypotheses(
    scenario: Scenario, difference: Difference, observer: int, parameter: int, wanted: Any
) -> Iterator[tuple[str, Any]]:
    """The words and values of each hypothesis. The words name the rank where the difference was first seen.

    The values are those for ``observer``.
    """
    ranks, divisor = scenario.world_size, _divisor(scenario, difference.place)
    shape = scenario.parameters[parameter].shape
    if difference.quantity == "parameter":
        own = initial_parameters(scenario, difference.rank)[parameter]
        yield f"rank {difference.rank}'s own initial values: rank 0's never came", own
        return
    if wanted is None:
        yield "a parameter that nobody used got a gradient of zeros", np.zeros(shape)
        return
    expected = np.asarray(wanted, dtype=np.float64)
    yield "the gradient is missing on this rank", None
    if gone := scenario.gone(difference.place):
        yield "divided by the number of all ranks, not of those that remain", expected * divisor / ranks
        yield "divided by the number of ranks that remain, not of all", expected * divisor / (ranks - len(gone))
    scale = scenario.loss_scale
    if scale is not None and _rescaled(scenario, difference.place) and divisor & (divisor - 1) == 0:
        # Scales are powers of two too. So a wrong scale and a forgotten division by the number of ranks look the same.
        yield "not divided by the loss scale", expected * scale.initial
        yield "divided by the loss scale twice", expected / scale.initial
    else:
        yield "the sum over ranks where the mean is due", expected * divisor
        yield "divided by the number of ranks twice", expected / divisor
    local = [local_gradient(scenario, rank, difference.place, parameter) for rank in range(ranks)]
    yield f"rank {difference.rank}'s own gradient: never synchronized", local[observer]
    for rank, values in enumerate(local):
        if values is not None:
            yield f"rank {rank}'s gradient alone", values
            yield f"rank {rank}'s contribution is missing", expected - values / divisor
            yield f"rank {rank}'s contribution counts twice", expected + values / divisor
    if any(place < difference.place for place in scenario.places(Raise)):
        yield "the micro-batch that the caller's error has ended, all of NaN, is still in it", np.full(shape, np.nan)
    yield "zeros", np.zeros(shape)


def _rescaled(scenario: Scenario, place: int) -> bool:
    """True if gradients are divided by the loss scale before an event ends, or if the scale may have changed."""
    return any(at <= place for at in scenario.places(Step, Unscale))


def _divisor(scenario: Scenario, place: int) -> int:
    """The divisor of the mean at an event."""
    gone = scenario.gone(place)
    return scenario.world_size - (len(gone) if scenario.standings[place].divide_by == DIVISORS[1] else 0)


def local_gradient(scenario: Scenario, rank: int, place: int, parameter: int) -> Any:
    """The gradient of one rank without the others: the same program run on its samples alone.

    None if the gradient is missing or enclosed. Also None if no such program exists, because the rank has run out of
    micro-batches before, or uses no parameter in one of them.
    """
    if any(rank in scenario.gone(number) for number in range(place + 1)):
        return None
    per_rank = scenario.samples // scenario.world_size
    mine = range(rank * per_rank, (rank + 1) * per_rank)

    def silenced(event: Backward) -> Backward:
        orders = tuple(order if s in mine else () for s, order in enumerate(event.orders))
        return replace(event, orders=orders, overflow=(), gone=())

    batches = {place: silenced(event) for place, event in scenario.events(Backward)}
    if not all(any(batch.orders) for batch in batches.values()):
        return None
    table = (batches.get(at, event.on_one_rank()) for at, event in enumerate(scenario.program))
    # All samples stay, so that each keeps its numbers. Silent samples add zero. The mean over all of them is undone.
    alone = scenario.on_ranks(1, program=tuple(table))
    values = interpret(alone).gradients[place][parameter]
    if values is None or isinstance(values, Inside):
        return None
    return np.asarray(values, dtype=np.float64) * scenario.world_size
