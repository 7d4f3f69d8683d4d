"""Decide if a failure counts, and describe its result on real processes."""

import re
from collections import Counter
from dataclasses import replace

from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.core import explains, goes_wrong
from lockstep.properties.diagnosing.rerunning import REPEAT_SECONDS, TIMES, fails, repeat, rerun
from lockstep.properties.judging import judge
from lockstep.properties.law import Law
from lockstep.properties.searching.search import Failure, how_broken, took_the_clock
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused, SilentlyWrong
from lockstep.worlds.contract import errors_of
from lockstep.worlds.unmatched import UNMATCHED

# Seconds on gloo for a failure found on the simulated world. That run only adds the result of a real backend.
CONFIRM_LIMIT = 2.0
# The least number of passing runs on gloo that is reported; fewer are no evidence.
ENOUGH = 4
# A warning as Python prints it: the place, the message, and the line of code.
_WARNING = re.compile(r"^.+:\d+: \w*Warning: .*(\n  .*)?", re.MULTILINE)
ONE_ORDER = (
    "gloo gave the right values, and so does sim where it adds in the order of ranks: the failure depends on the order "
    "of reduction, which is for a backend to choose; --any-order drew another one."
)
CARRIED_OUT = (
    "gloo carried these collectives out although they do not match, and gave the right values this time; nothing "
    "promises them, and other backends hang or corrupt."
)


def confirm(law: Law, trial: Trial, failure: Failure) -> Failure | None:
    """Run a failure again to count how often it occurs, and run it on gloo.

    None if it is an artefact of simulating ranks in one process, and no failure. A failure that gloo does not show, and
    that disappears if collectives finish at once, is a race: allowed by the contract, but not seen this time.
    """
    again = repeat(law, trial, failure)
    if again is None:
        return None
    failure, (failed, runs) = again, again.seen
    if law.only_on and failed == runs:
        shared = _only_simulated(trial, failure)
        return None if shared else replace(failure, elsewhere=law.only_on[trial.world.name])
    if trial.world.name != "sim" or trial.confirm_on is None:
        words = "shrunk on the simulated world, which shows it too." if failure.simulated else ""
        return replace(failure, elsewhere=words)
    real = replace(trial, world=trial.confirm_on(), confirm_on=None, limit=None, apart=True, left=Counter())
    if failed < runs:  # the simulated world is deterministic, so the implementation is not
        there, runs = rerun(law, real, failure.drawn, REPEAT_SECONDS)
        told = f"on gloo it fails in {len(there)} of {runs} runs." if there or runs >= ENOUGH else ""
        return replace(failure, elsewhere=told)
    try:
        _check_soon(law, real, failure)
    except Refused as refused:
        return replace(failure, elsewhere=f"on gloo: refuses. {refused}")
    except LawBroken as broken:
        if failure.broken.same_as(broken) and broken.difference is not None:
            ranks = failure.broken.scenario.world_size
            give = "real processes on gloo give" if ranks > 1 else "real process on gloo gives"
            return replace(failure, elsewhere=f"confirmed: {ranks} {give} the same wrong bits.")
        if isinstance(broken, SilentlyWrong):
            twice = how_broken(law, replace(real, limit=CONFIRM_LIMIT), failure.drawn, [])
            if twice is not None and twice.result != broken.result:  # a race: values that nobody can repeat
                return replace(failure, elsewhere=f"on gloo: {broken.verdict}, with other values in each run.")
        return replace(failure, elsewhere=f"on gloo: {broken.verdict}. {broken.result}{printed(broken)}")
    if _unmatched(real) and any(error.kind == "mismatch" for error in errors_of(failure.broken.outcome).values()):
        return replace(failure, elsewhere=CARRIED_OUT)
    if trial.any_order and not fails(law, replace(trial, any_order=False), failure, times=1):
        return replace(failure, elsewhere=ONE_ORDER)
    at_once = replace(trial, at_once=True)
    try:
        law.check(at_once, failure.drawn)
    except (Refused, LawBroken):
        # A random failure may occur each time on sim and pass once on gloo. It is an artefact only if gloo never shows
        # it.
        there, runs = rerun(law, real, failure.drawn, REPEAT_SECONDS)
        return replace(failure, elsewhere=f"on gloo it fails in {len(there)} of {runs} runs.") if there else None
    words = "gloo gave the right values this time, and so does sim if collectives finish at once: a race."
    return replace(failure, elsewhere=words)


def _only_simulated(trial: Trial, failure: Failure) -> bool:
    """True for an artefact of sim, if the law is about choices that only sim offers.

    The program alone then fails in the same manner on sim, with any timing, but never on gloo.
    """
    scenario = failure.broken.scenario
    if trial.confirm_on is None or not isinstance(scenario, Scenario) or took_the_clock(failure.broken):
        return False
    apart = replace(trial, confirm_on=None, any_order=False, witnessed=Counter(), left=Counter())
    for timing in (apart, replace(apart, at_once=True)):
        usual = goes_wrong(timing, scenario)
        if usual is None or not explains(usual, failure, trial):
            return False
    real = replace(apart, world=trial.confirm_on(), limit=None, apart=True, left=Counter())
    try:
        for _ in range(TIMES):
            judge.values_equal(*real.run_and_expect(scenario), "")
    except (LawBroken, Refused):
        return False
    return not _unmatched(real)


def _unmatched(trial: Trial) -> bool:
    """True if some collectives or messages had no counterpart, although every rank finished."""
    return any(left.startswith(UNMATCHED) for left in trial.left)


def _check_soon(law: Law, trial: Trial, failure: Failure) -> None:
    """Check the law on a failure's example with a short time limit where that is safe.

    A hang that was not seen before may be due to a slow machine, so it gets the world's whole limit. Ranks with
    mismatched collectives are expected to hang.
    """
    try:
        law.check(replace(trial, limit=CONFIRM_LIMIT), failure.drawn)
    except LawBroken as broken:
        apart = {"mismatch", "deadlock"} & {error.kind for error in errors_of(failure.broken.outcome).values()}
        if not took_the_clock(broken) or took_the_clock(failure.broken) or apart:
            raise
        law.check(trial, failure.drawn)


def printed(broken: LawBroken) -> str:
    """The last output of ranks that died, in one line, without warnings; empty if nothing is left."""
    for report in broken.outcome:
        if report.error is None or report.error.kind != "died":
            continue
        if said := " ".join(_WARNING.sub("", report.error.details).split()):
            return f" It printed: {said[-300:]}"
    return ""
