"""What a run has sent, counted as `oracle.zero` and `oracle.cost` count it."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from oracle.program import Scenario
from properties.trial import Run, Trial
from worlds.contract import MESSAGES, Collective

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
# What each of n elements costs a rank, but for the factor (S - 1) / S: an all-reduce is two passes over a ring.
PASSES = {"all_reduce": 2, "barrier": 0}


@dataclass(frozen=True)
class Cost:
    """A run, and how many elements each rank has moved in it since construction."""

    run: Run
    costs: tuple[Fraction, ...]


def reductions(calls: Iterable[Collective]) -> list[Collective]:
    """Those that add up."""
    return [call for call in calls if call.operation in REDUCTIONS]


def elements(call: Collective) -> int:
    """Of the whole: what all ranks put in together, or what each of them puts in to be added up."""
    return sum(call.gives) or call.count


def passed(calls: Iterable[Collective], ranks: int) -> Fraction:
    """Elements times passes. A message has the factor (S - 1) / S already, and counts where it is sent."""
    return sum((_passed(call, ranks) for call in calls), Fraction(0))


def _passed(call: Collective, ranks: int) -> Fraction:
    if call.operation in MESSAGES:
        return Fraction(call.count * ranks, ranks - 1) if call.operation == "send" else Fraction(0)
    whole = sum(call.takes) or elements(call) * ranks if call.operation == "all_gather" else elements(call)
    return Fraction(PASSES.get(call.operation, 1) * whole)


def cost_of(trial: Trial, scenario: Scenario) -> Cost:
    """What a program moves beyond what construction does."""
    run = trial.run(scenario)
    return Cost(run, tuple(passed(calls, scenario.world_size) for calls in run.since_construction))
