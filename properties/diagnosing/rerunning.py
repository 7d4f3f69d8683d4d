"""Failures once more: how often they come again, and whether time or earlier examples are the reason."""

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

# How often, and for how many seconds at most, a shrunk failure is run again to see whether it always fails.
# One that has been shrunk on the simulated world, which shows it too, has fewer seconds, unless it hangs.
REPEATS, REPEAT_SECONDS, SIMULATED_SECONDS = 8, 10.0, 2.0
TIMES = 2  # runs of a failure in processes that have run others, and in fresh ones
SURELY = 4  # runs in fresh ones that fail, where in the others it does not always


def rerun(law: Law, trial: Trial, drawn: Any, seconds: float) -> tuple[list[LawBroken], int]:
    """Checks the law a few times on one example: how it was broken, and in how many runs."""
    failures: list[LawBroken] = []
    runs, since = 0, time.monotonic()
    while runs < REPEATS and time.monotonic() - since < seconds:
        runs += 1
        if (broken := how_broken(law, trial, drawn, [])) is not None:
            failures.append(broken)
    return failures, runs


def repeat(law: Law, trial: Trial, failure: Failure) -> Failure | None:
    """Runs a failure again on its world and counts in how many runs it is seen; the run that found it counts.

    One that was shrunk on the simulated world must fail on its own as well, and one that hangs with all of its world's
    patience; else what was found there stands instead, if anything was.
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
    """True if time ended all of these, which is no part of a scenario, and none is ended so again."""
    late = [failure for failure in failures if _took_too_long(failure.broken)]
    return bool(late) and len(late) == len(failures) and not any(fails(law, trial, failure) for failure in failures)


def _took_too_long(broken: LawBroken) -> bool:
    return any(error.kind == "timeout" for error in errors_of(broken.outcome).values())


def owes_to_the_past(law: Law, trial: Trial, failures: Sequence[Failure]) -> bool:
    """True if one of these fails each time where it was found, and never in processes in which nothing has run before;
    or each time in these, and not where it was found.

    Not one by chance, which may pass or fail in either.
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
    """True if one of these fails each time, and never where simulated ranks have state of their own."""
    own = replace(trial, own_state=True, witnessed=Counter())
    for failure in failures:
        if not took_the_clock(failure.broken) and not fails(law, own, failure) and fails(law, trial, failure, all):
            return True
    return False


def fails(
    law: Law, trial: Trial, failure: Failure, how: Callable[[Iterable[bool]], bool] = any, times: int = TIMES
) -> bool:
    """True if the law is broken on its example, in any of a few runs, or in all."""
    return how(how_broken(law, trial, failure.drawn, []) is not None for _ in range(times))
