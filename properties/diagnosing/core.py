"""The core of a failure: the smallest part of its program that fails without the law.

A law's smallest program contains everything that the law is about, for example a step or a file. If a part of it
already computes wrong values or does not finish, then more than this law is broken. Failures of many laws may have one
core.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.properties.events.step import reads_stepped_gradients
from lockstep.properties.judging import judge
from lockstep.properties.searching.least import MOST_RUNS, least
from lockstep.properties.searching.search import SHRINK_LIMIT, Failure, took_the_clock
from lockstep.properties.strategies.scenarios import adds_up_rounded_means
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused
from lockstep.worlds.contract import to_blame

MOST_LATE = 3  # runs that only a time limit ends


def core(trial: Trial, failure: Failure, most_runs: int = MOST_RUNS) -> Scenario | None:
    """The smallest part of a failure's program that fails in the same manner, compared with the oracle alone, on sim.

    None if the whole program does not fail there as the failure does, or only by exceeding a time limit.
    """
    scenario = failure.broken.scenario
    simulated = trial.world if trial.world.name == "sim" else trial.sim() if trial.sim is not None else None
    if not isinstance(scenario, Scenario) or simulated is None:
        return None
    apart = replace(trial, world=simulated, confirm_on=None, limit=SHRINK_LIMIT, witnessed=Counter(), left=Counter())
    whole = goes_wrong(apart, scenario)
    if whole is None or took_the_clock(whole) or not explains(whole, failure, trial):
        return None
    late = 0

    def fails(smaller: Scenario) -> bool:
        nonlocal late
        broken = goes_wrong(apart, smaller) if late < MOST_LATE else None
        late += broken is not None and took_the_clock(broken)
        return manner(broken) == manner(whole)

    return least(scenario, fails, most_runs)


def explains(whole: LawBroken, failure: Failure, trial: Trial) -> bool:
    """True if a program that fails without its law fails as it did under the law.

    That is, it has a wrong value no later than the one that the law found, or the same errors. Errors of real ranks may
    differ from those on sim for the same reason.
    """
    mine, its = failure.broken.difference, whole.difference
    if type(whole) is not type(failure.broken) or (mine is None) != (its is None):
        return False
    if mine is not None and its is not None:
        return its.place <= mine.place
    return manner(whole) == manner(failure.broken) or (trial.world.name != "sim" and failure.simulated)


def manner(broken: LawBroken | None) -> tuple[Any, ...] | None:
    """The manner in which a program fails: its first wrong quantity and the kind of event before it, or its errors.

    A smaller program that fails in another manner may have another cause.
    """
    if broken is None:
        return None
    if (difference := broken.difference) is not None:
        after = type(broken.scenario.program[difference.place]) if difference.place >= 0 else None
        return type(broken), difference.quantity, after
    told = to_blame(broken.outcome).values()
    return type(broken), {(e.kind, e.message.partition(":")[0] if e.kind == "raised" else "") for e in told}


def goes_wrong(trial: Trial, scenario: Scenario) -> LawBroken | None:
    """The failure of a program without any law; None if it does not fail or the oracle cannot decide."""
    if beyond(trial.claims, scenario) or reads_stepped_gradients(scenario):
        return None
    try:
        if adds_up_rounded_means(scenario, trial.expected(scenario), not trial.claims.silent_no_sync):
            return None
        judge.values_equal(*trial.run_and_expect(scenario), "")
    except LawBroken as broken:
        return broken
    except (Refused, Inexact, UnsatisfiedAssumption):
        pass
    return None
