"""Repeat failures: count how often they recur, and check if time or earlier examples are the reason."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from lockstep.properties.law import Law
from lockstep.properties.searching.search import SHRINK_LIMIT, Failure, how_broken, took_the_clock
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import errors_of

# The limits, in runs and seconds, for repeating a shrunk failure to see if it always fails. One shrunk on the simulated
# world gets fewer seconds, unless it hangs.
REPEATS, REPEAT_SECONDS, SIMULATED_SECONDS = 8, 10.0, 2.0
TIMES = 2  # runs of a failure in used processes, and in fresh ones
SURELY = 4  # failing runs in fresh processes that are needed if it does not always fail in used ones


def rerun(law: Law, trial: Trial, drawn: Any, seconds: float) -> tuple[list[LawBroken], int]:
    """Check the law several times on one example. Returns the failures, and the number of runs."""
    failures: list[LawBroken] = []
    runs, since = 0, time.monotonic()
    while runs < REPEATS and time.monotonic() - since < seconds:
        runs += 1
        if (broken := how_broken(law, trial, drawn, [])) is not None:
            failures.append(broken)
    return failures, runs


def repeat(law: Law, trial: Trial, failure: Failure) -> Failure | None:
    """Run a failure again on its world, and count the failing runs, including the run that found it.

    A failure shrunk on the simulated world must also occur on its own world. One that hangs must occur with the world's
    whole limit. Otherwise the originally found failure is used instead, if there is one.
    """
    here = failure.found.broken if failure.found and failure.simulated else failure.broken
    hangs = took_the_clock(here)
    if failure.found and (hangs or not failure.simulated) and how_broken(law, trial, failure.drawn, []) is None:
        return repeat(law, trial, failure.found)
    limit = SHRINK_LIMIT if hangs else trial.limit
    seconds = SIMULATED_SECONDS if failure.simulated and not hangs else REPEAT_SECONDS
    failures, runs = rerun(law, replace(trial, limit=limit), failure.drawn, seconds)
    if not failure.simulated:
        return replace(failure, seen=(len(failures) + 1, runs + 1))
    if not failures:
        return repeat(law, trial, failure.found) if failure.found else None
    return replace(failure, broken=failures[0], seen=(len(failures), runs))


def paused(law: Law, trial: Trial, failures: Sequence[Failure]) -> bool:
    """True if all failures exceeded the time limit, and none does so again. Time is no part of a scenario."""
    late = [failure for failure in failures if _took_too_long(failure.broken)]
    return bool(late) and len(late) == len(failures) and not any(fails(law, trial, failure) for failure in failures)


def _took_too_long(broken: LawBroken) -> bool:
    return any(error.kind == "timeout" for error in errors_of(broken.outcome).values())


def owes_to_the_past(law: Law, trial: Trial, failures: Sequence[Failure]) -> bool:
    """True if the result of some failure depends on earlier examples in the process.

    That is, it always fails where it was found and never in fresh processes, or always fails in fresh ones and not
    where it was found. A random failure is neither.
    """
    fresh = replace(trial, apart=True)
    for failure in failures:
        if took_the_clock(failure.broken):
            continue
        if fails(law, trial, failure, all):
            if not fails(law, fresh, failure):
                return True
        elif fails(law, fresh, failure, all, SURELY):
            return True
    return False


def owes_to_sharing(law: Law, trial: Trial, failures: Sequence[Failure]) -> bool:
    """True if a failure occurs each time, but never if simulated ranks have separate state."""
    own = replace(trial, own_state=True, witnessed=Counter())
    for failure in failures:
        if not took_the_clock(failure.broken) and not fails(law, own, failure) and fails(law, trial, failure, all):
            return True
    return False


def fails(
    law: Law, trial: Trial, failure: Failure, how: Callable[[Iterable[bool]], bool] = any, times: int = TIMES
) -> bool:
    """True if the law is broken on the failure's example in any of a few runs, or in all of them."""
    return how(how_broken(law, trial, failure.drawn, []) is not None for _ in range(times))
