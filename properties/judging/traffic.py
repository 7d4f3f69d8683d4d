"""The communicated elements of a run: the mean number that a rank moves if collectives use a ring."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from lockstep.oracle.formats import FORMATS
from lockstep.properties.trial import Run
from lockstep.worlds.contract import MESSAGES, Collective, members_of

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
WIDEST = "float64"
# The cost of each of n elements for a member, without the factor (S - 1) / S. An all-reduce is two passes over a ring.
PASSES = {"all_reduce": 2, "barrier": 0}


@dataclass(frozen=True)
class Cost:
    """A run, and the number of elements that each rank has moved since construction."""

    run: Run
    costs: tuple[Fraction, ...]


def reductions(calls: Iterable[Collective]) -> list[Collective]:
    """The collectives that add values."""
    return [call for call in calls if call.operation in REDUCTIONS]


def elements(call: Collective) -> int:
    """The elements of the full tensor: the inputs of all ranks together, or the input of each rank to a reduction."""
    return sum(call.gives) or call.count


def passed(calls: Iterable[Collective], ranks: int, due: str = WIDEST) -> Fraction:
    """The elements that a rank moves, counted once for each pass, without the world's factor (S - 1) / S.

    There must be two ranks or more. Elements wider than the ``due`` dtype count as several. Narrower ones, and bytes,
    count one each.
    """
    moved = (times_as_wide(call, due) * _moved(call, ranks) for call in calls)
    return sum(moved, Fraction(0)) * Fraction(ranks, ranks - 1)


def times_as_wide(call: Collective, due: str) -> Fraction:
    """The width of an element in elements of the ``due`` dtype, at least one."""
    return max(Fraction(1), Fraction(FORMATS[call.dtype if call.dtype in FORMATS else due].bytes, FORMATS[due].bytes))


def _moved(call: Collective, ranks: int) -> Fraction:
    """The elements moved by each member of the group, which may be a part of the world, or by a message's sender."""
    if call.operation in MESSAGES:
        return Fraction(call.count if call.operation == "send" else 0)
    members = len(members_of(call.group, ranks))
    whole = sum(call.takes) or elements(call) * members if call.operation == "all_gather" else elements(call)
    return PASSES.get(call.operation, 1) * whole * Fraction(members - 1, members)


def cost_of(run: Run, due: str) -> Cost:
    """The elements that a run has moved since construction, see `passed`."""
    return Cost(run, tuple(passed(calls, run.scenario.world_size, due) for calls in run.since_construction))
