"""Holds a law against an implementation on a world: searches, confirms on real processes, files the verdict."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lockstep.oracle.program import Scenario
from lockstep.properties.errors import alike
from lockstep.properties.judging import judge
from lockstep.properties.law import Law, concerns, sentence
from lockstep.properties.reports.matrix import PROPERTY
from lockstep.properties.reports.paragraphs import capitalized
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.probing import probe
from lockstep.properties.running.unbroken import without_failure
from lockstep.properties.searching.core import explains, goes_wrong
from lockstep.properties.searching.search import (
    REPEAT_SECONDS,
    Failure,
    Search,
    how_broken,
    repeat,
    rerun,
    took_the_clock,
)
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import (
    BACKEND_AT_FAULT,
    ERROR_IN_LOCKSTEP,
    HOLDS,
    NOT_CLAIMED,
    NOT_RUNNABLE,
    REFUSES,
    SHOWS_NOTHING,
    SIM_ONLY,
    LawBroken,
    Refused,
    SilentlyWrong,
)
from lockstep.worlds.contract import errors_of
from lockstep.worlds.unmatched import UNMATCHED

# Seconds on gloo for a failure that the simulated world has shown: it only says what a real backend makes of it.
CONFIRM_LIMIT = 2.0
TIMES = 2  # runs of a failure in processes that have run others, and in fresh ones
SURELY = 4  # runs in fresh ones that fail, where in the others it does not always
# As Python prints it: where, what, and the line of code.
_WARNING = re.compile(r"^.+:\d+: \w*Warning: .*(\n  .*)?", re.MULTILINE)
ONE_ORDER = (
    "gloo gave the right values, and so does sim where it adds in the order of ranks: the failure depends on the order "
    "of reduction, which is for a backend to choose; --any-order drew another one."
)
CARRIED_OUT = (
    "gloo carried these collectives out although they do not match, and gave the right values this time; nothing "
    "promises them, and other backends hang or corrupt."
)
PAST = (
    "fails only after other examples have run in the same process, so it keeps state (such as a class attribute) from "
    "one wrapped module to the next; each example was therefore run in fresh processes"
)
PAUSED = (
    "an example exceeded its time limit once but never when run again, so the machine was busy (on sim a real hang "
    "hangs every time); the search was restarted"
)


def hold(law: Law, trial: Trial, record: Callable[[str, Any], None], budget: Budget | None = None) -> None:
    """The body of a law's test: passes, or fails with a report for people. Files the verdict for the matrix, which says
    so too where the error is Lockstep's own.
    """
    filed = {"number": law.number, "law": sentence(law), "implementation": trial.implementation.name}
    filed["world"] = trial.world.name
    try:
        _hold(law, trial, record, budget or Budget(), filed)
    except Exception:
        record(PROPERTY, {**filed, "verdict": ERROR_IN_LOCKSTEP})
        raise


def _hold(law: Law, trial: Trial, record: Callable[[str, Any], None], budget: Budget, filed: Mapping[str, Any]) -> None:
    if trial.world_fault:
        record(PROPERTY, {**filed, "verdict": BACKEND_AT_FAULT})
        pytest.fail(f"Nothing is judged on the {trial.world.name} world: {trial.world_fault}", pytrace=False)
    if concerns(law, trial.implementation.claims) and not concerns(law, trial.claims):
        record(PROPERTY, {**filed, "verdict": NOT_RUNNABLE})
        ranks = trial.claims.most_ranks
        has = f"it has {ranks} rank{'s' * (ranks > 1)}, and the law takes more"
        pytest.skip(f"not runnable on the {trial.world.name} world: {has}")
    if not concerns(law, trial.claims):
        verdict, examples = probe(law, trial)
        record(PROPERTY, {**filed, "verdict": f"{NOT_CLAIMED}; probed: {verdict}", "examples": examples})
        return

    trial.witnessed.clear()
    trial.left.clear()
    remarks: list[str] = []
    trial, found = _searched(law, trial, budget, remarks)
    failures, unseen = _confirmed(law, trial, budget, found)
    told: list[dict[str, Any]] = []
    if failures:
        # Needs most of the suite; a law that holds does not.
        from lockstep.properties.reports.failure import filed_failure

        verdict = " and ".join(dict.fromkeys(failure.verdict for failure in failures))
        told = [filed_failure(law, trial, failure) for failure in failures]
        words = "\n\n".join(each["report"] for each in told)
    else:
        verdict, words = without_failure(trial, found, unseen)
    if verdict in (SIM_ONLY, SHOWS_NOTHING):
        remarks.append(words)
    fails = bool(failures) or verdict == REFUSES
    beside: dict[str, Any] = {"failures": told} if told else {}
    if verdict == HOLDS and found.refusals:
        beside |= {"refused": len(found.refusals), "refusals": _kinds(found)}
    record(PROPERTY, {**filed, "verdict": verdict, "examples": found.examples, **beside})
    for remark in (*remarks, *_remarks(trial, found, fails)):
        warnings.warn(f"{trial.implementation.name}: {sentence(law)}: {remark}", stacklevel=2)
    if fails:
        pytest.fail(words, pytrace=False)
    if verdict == NOT_RUNNABLE:
        pytest.skip(words)


def _searched(law: Law, trial: Trial, budget: Budget, remarks: list[str]) -> tuple[Trial, Search]:
    """What the search has found for which neither a busy machine is the reason nor what earlier examples have left; and
    the trial, in which each example has processes of its own if they are.
    """
    found = budget.spend(law, trial)
    if trial.world.name == "sim" and paused(law, trial, found.failures):
        remarks.append(PAUSED)
        found = budget.spend(law, trial)
    if found.stale or owes_to_the_past(law, trial, found.failures):
        trial = replace(trial, apart=True, witnessed=Counter())
        found = budget.spend(law, trial)
    return trial, found


def _confirmed(law: Law, trial: Trial, budget: Budget, found: Search) -> tuple[list[Failure], list[str]]:
    """The failures that stand when run again; where there are none, what the law is about and never happened."""
    candidates = [*found.failures, *_behind_the_loud(law, trial, budget, found.failures)]
    failures = [confirmed for failure in candidates if (confirmed := confirm(law, trial, failure)) is not None]
    if found.failures or not trial.witnessed[ENDED]:
        return failures, []
    try:
        return failures, unwitnessed(law, trial)
    except LawBroken as broken:  # on the law's own example, which is small already
        return [Failure(None, broken)], []


def _remarks(trial: Trial, found: Search, fails: bool) -> Iterator[str]:
    """What is worth a warning, whatever the verdict."""
    if not fails and 2 * len(found.refusals) > found.examples:
        refused = f"{len(found.refusals)} of {found.examples} examples were refused"
        yield f"{refused}, mostly so: {next(iter(_kinds(found)))}"
    if trial.apart and not found.failures:
        yield PAST
    if trial.left:
        yield f"leaves behind {', '.join(sorted(trial.left))}; what it ran on was ended after each such example"


def _behind_the_loud(law: Law, trial: Trial, budget: Budget, failures: Sequence[Failure]) -> list[Failure]:
    """Silent corruption is the worst there is: what is found of it behind failures that all announce themselves."""
    broken = [failure.broken for failure in failures]
    if not broken or any(isinstance(each, SilentlyWrong) or took_the_clock(each) for each in broken):
        return []
    return budget.look_behind(law, trial).failures


def _kinds(found: Search) -> dict[str, int]:
    """How many refusals there were of each kind, by the words of its first; the most frequent first."""
    first = {alike(str(each)): str(each) for each in found.refusals[::-1]}
    return {first[kind]: times for kind, times in Counter(alike(str(each)) for each in found.refusals).most_common()}


def paused(law: Law, trial: Trial, failures: Sequence[Failure]) -> bool:
    """Whether time ended all of these, which is no part of a scenario, and none is ended so again."""
    late = [failure for failure in failures if _took_too_long(failure.broken)]
    return bool(late) and len(late) == len(failures) and not any(_fails(law, trial, failure) for failure in failures)


def _took_too_long(broken: LawBroken) -> bool:
    return any(error.kind == "timeout" for error in errors_of(broken.outcome).values())


def owes_to_the_past(law: Law, trial: Trial, failures: Sequence[Failure]) -> bool:
    """Whether one of these fails each time where it was found, and never in processes in which nothing has run before;
    or each time in these, and not where it was found.

    Not one by chance, which may pass or fail in either.
    """
    fresh = replace(trial, apart=True)
    for failure in failures:
        if took_the_clock(failure.broken):
            continue
        if _fails(law, trial, failure, all):
            if not _fails(law, fresh, failure):
                return True
        elif _fails(law, fresh, failure, all, SURELY):
            return True
    return False


def _fails(
    law: Law, trial: Trial, failure: Failure, how: Callable[[Iterable[bool]], bool] = any, times: int = TIMES
) -> bool:
    """Whether the law is broken on its example, in any of a few runs, or in all."""
    return how(how_broken(law, trial, failure.drawn, []) is not None for _ in range(times))


def confirm(law: Law, trial: Trial, failure: Failure) -> Failure | None:
    """Runs a failure again, to see how often it fails, and on gloo, to say what a real backend makes of it.

    None: it is an artefact of simulating ranks in one process, and no failure. A failure that gloo does not show but
    that is gone when collectives finish at once is a race: allowed by the contract, not seen this time.
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
    if failed < runs:  # the simulated world does the same every time, so the implementation does not
        there, runs = rerun(law, real, failure.drawn, REPEAT_SECONDS)
        return replace(failure, elsewhere=f"on gloo it fails in {len(there)} of {runs} runs.")
    try:
        _check_soon(law, real, failure)
    except Refused as refused:
        return replace(failure, elsewhere=f"on gloo: refuses. {refused}")
    except LawBroken as broken:
        if failure.broken.same_as(broken) and broken.difference is not None:
            ranks = failure.broken.scenario.world_size
            give = "real processes on gloo give" if ranks > 1 else "real process on gloo gives"
            return replace(failure, elsewhere=f"confirmed: {ranks} {give} the same wrong bits.")
        return replace(failure, elsewhere=f"on gloo: {broken.verdict}. {capitalized(broken.headline)}{printed(broken)}")
    if _unmatched(real) and any(error.kind == "mismatch" for error in errors_of(failure.broken.outcome).values()):
        return replace(failure, elsewhere=CARRIED_OUT)
    if trial.any_order and not _fails(law, replace(trial, any_order=False), failure, times=1):
        return replace(failure, elsewhere=ONE_ORDER)
    at_once = replace(trial, at_once=True)
    try:
        law.check(at_once, failure.drawn)
    except (Refused, LawBroken):
        # Chance may have failed each time on sim and passed once on gloo: only what gloo never shows is an artefact.
        there, runs = rerun(law, real, failure.drawn, REPEAT_SECONDS)
        return replace(failure, elsewhere=f"on gloo it fails in {len(there)} of {runs} runs.") if there else None
    words = "gloo gave the right values this time, and so does sim if collectives finish at once: a race."
    return replace(failure, elsewhere=words)


def _only_simulated(trial: Trial, failure: Failure) -> bool:
    """Of a law about what only sim lets one choose: whether the program goes wrong on sim in that manner without any of
    it, with any timing, and on gloo never.
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
    """Whether ranks launched what had no other side, although every one of them came to its end."""
    return any(left.startswith(UNMATCHED) for left in trial.left)


def _check_soon(law: Law, trial: Trial, failure: Failure) -> None:
    """Checks the law on a failure's example, with little patience where that is safe: what hangs without having hung
    before may be a slow machine's, and gets the world's whole limit.
    """
    try:
        law.check(replace(trial, limit=CONFIRM_LIMIT), failure.drawn)
    except LawBroken as broken:
        if not took_the_clock(broken) or took_the_clock(failure.broken):
            raise
        law.check(trial, failure.drawn)


def printed(broken: LawBroken) -> str:
    """What the ranks that died last printed, on one line, but for warnings, which are no cause; empty where nothing is
    left.
    """
    for report in broken.outcome:
        if report.error is None or report.error.kind != "died":
            continue
        if said := " ".join(_WARNING.sub("", report.error.details).split()):
            return f" It printed: {said[-300:]}"
    return ""
