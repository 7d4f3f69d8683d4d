"""The traffic of a run in elements: the mean that each rank moves if collectives go round a ring."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from lockstep.oracle.formats import FORMATS
from lockstep.properties.trial import Run
from lockstep.worlds.contract import MESSAGES, Collective, members_of

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
WIDEST = "float64"
# What each of n elements costs a member, but for the factor (S - 1) / S: an all-reduce is two passes over a ring.
PASSES = {"all_reduce": 2, "barrier": 0}


@dataclass(frozen=True)
class Cost:
    """A run, and how many elements each rank has moved in it since construction."""

    run: Run
    costs: tuple[Fraction, ...]


def reductions(calls: Iterable[Collective]) -> list[Collective]:
    """The collectives that add up."""
    return [call for call in calls if call.operation in REDUCTIONS]


def elements(call: Collective) -> int:
    """Of the whole: what all ranks put in together, or what each of them puts in to be added up."""
    return sum(call.gives) or call.count


def passed(calls: Iterable[Collective], ranks: int, due: str = WIDEST) -> Fraction:
    """Elements times passes, in a world of two ranks or more: what a rank moves, but for the world's (S - 1) / S.

    What is wider than the dtype that is ``due`` counts as so many more; what is narrower, or bytes, element by element.
    """
    moved = (times_as_wide(call, due) * _moved(call, ranks) for call in calls)
    return sum(moved, Fraction(0)) * Fraction(ranks, ranks - 1)


def times_as_wide(call: Collective, due: str) -> Fraction:
    """The width of an element in elements of the dtype that is due, at least one."""
    return max(Fraction(1), Fraction(FORMATS[call.dtype if call.dtype in FORMATS else due].bytes, FORMATS[due].bytes))


def _moved(call: Collective, ranks: int) -> Fraction:
    """By each member of the group, which may be a part of the world; of a message, by its sender."""
    if call.operation in MESSAGES:
        return Fraction(call.count if call.operation == "send" else 0)
    members = len(members_of(call.group, ranks))
    whole = sum(call.takes) or elements(call) * members if call.operation == "all_gather" else elements(call)
    return PASSES.get(call.operation, 1) * whole * Fraction(members - 1, members)


def cost_of(run: Run, due: str) -> Cost:
    """The elements that a run has moved after construction, see `passed`."""
    return Cost(run, tuple(passed(calls, run.scenario.world_size, due) for calls in run.since_construction))
