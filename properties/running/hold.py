"""Check a law on an implementation and a world: search, confirm on real processes, file the verdict."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lockstep.properties.diagnosing.confirming import confirm
from lockstep.properties.diagnosing.rerunning import owes_to_sharing, owes_to_the_past, paused
from lockstep.properties.errors import alike
from lockstep.properties.law import Law, concerns, sentence
from lockstep.properties.reports.matrix import PROPERTY, SHOWN
from lockstep.properties.running.apart import Docket, hold_apart
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.probing import probe
from lockstep.properties.running.unbroken import without_failure
from lockstep.properties.searching.search import Failure, Search, took_the_clock
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import (
    BACKEND_AT_FAULT,
    ERROR_IN_LOCKSTEP,
    HOLDS,
    IMPOSSIBLE,
    NOT_RUNNABLE,
    REFUSES,
    SHOWS_NOTHING,
    SIM_ONLY,
    TRIED,
    LawBroken,
    SilentlyWrong,
)

PAST = (
    "fails only after other examples have run in the same process, so it keeps state (such as a class attribute) from "
    "one wrapped module to the next; each example was therefore run in fresh processes"
)
SHARED = (
    "fails on the simulated world only while ranks share global variables and class attributes; they were kept apart "
    "by rank, as processes have them"
)
PAUSED = (
    "an example exceeded its time limit once but never when run again, so the machine was busy (on sim a real hang "
    "hangs every time); the search was restarted"
)


def hold(
    law: Law,
    trial: Trial,
    record: Callable[[str, Any], None],
    budget: Budget | None = None,
    docket: Docket | None = None,
) -> None:
    """The body of a law's test: it passes, or fails with a report for people.

    Files the verdict for the matrix, also if the error is Lockstep's own. ``docket``: the known defects, which are set
    aside for this law, and to which it adds the ones that it finds. None: the law is checked by itself.
    """
    filed = {"number": law.number, "law": sentence(law), "implementation": trial.implementation.name}
    filed["world"] = trial.world.name
    budget = budget or Budget()
    before = Counter(budget.others.shown)
    try:
        _hold(law, trial, record, budget, docket, filed)
    except Exception:
        record(PROPERTY, {**filed, "verdict": ERROR_IN_LOCKSTEP})
        raise
    finally:
        if shown := dict(budget.others.shown - before):
            record(SHOWN, {"implementation": trial.implementation.name, "world": trial.world.name, "runs": shown})


def _hold(
    law: Law,
    trial: Trial,
    record: Callable[[str, Any], None],
    budget: Budget,
    docket: Docket | None,
    filed: Mapping[str, Any],
) -> None:
    if trial.world_fault:
        record(PROPERTY, {**filed, "verdict": BACKEND_AT_FAULT})
        pytest.fail(f"Nothing is judged on the {trial.world.name} world: {trial.world_fault}", pytrace=False)
    if concerns(law, trial.implementation.claims) and not concerns(law, trial.claims):
        record(PROPERTY, {**filed, "verdict": NOT_RUNNABLE})
        ranks = trial.claims.most_ranks
        has = f"it has {ranks} rank{'s' * (ranks > 1)}, and the law takes more"
        pytest.skip(f"not runnable on the {trial.world.name} world: {has}")
    if not concerns(law, trial.claims):
        if docket is not None:
            docket.ledger.wait_to_begin(docket.place)
        verdict, examples = probe(law, trial, () if docket is None else docket.known(trial))
        record(PROPERTY, {**filed, "verdict": f"{TRIED}{verdict}", "examples": examples})
        return

    law = budget.others.join(law)
    trial.witnessed.clear()
    trial.left.clear()
    remarks: list[str] = []
    if docket is not None:
        trial, ending = hold_apart(law, trial, budget, docket, partial(_searched, remarks=remarks))
        verdict, words, found = ending.verdict, ending.words, ending.search
        fails = bool(ending.broken_by) or verdict == REFUSES
        _file(law, trial, record, filed, verdict, words, found, remarks, fails, ending.filed)
        return
    trial, found = _searched(law, trial, budget.spend, remarks)
    failures, unseen = _confirmed(law, trial, budget, found)
    told: list[dict[str, Any]] = []
    if failures:
        # Imported here because it loads most of the suite, which a law that holds does not need.
        from lockstep.properties.diagnosing.diagnosis import diagnose
        from lockstep.properties.reports.failure import also_broken, filed_failure

        verdict = " and ".join(dict.fromkeys(failure.verdict for failure in failures))
        whose = [budget.others.broken_by(failure.broken, law) for failure in failures]
        told = [filed_failure(of, trial, diagnose(trial, each)) for of, each in zip(whose, failures, strict=True)]
        for of, failure, each in zip(whose, failures, told, strict=True):
            each["report"] += also_broken(budget.others.also_broken(trial, failure.broken, of))
        words = "\n\n".join(each["report"] for each in told)
        if law.name not in {of.name for of in whose}:  # then the verdict is filed under the broken law
            filed = {**filed, "number": whose[0].number, "law": sentence(whose[0])}
    else:
        verdict, words = without_failure(trial, found, unseen)
    fails = bool(failures) or verdict == REFUSES
    _file(law, trial, record, filed, verdict, words, found, remarks, fails, {"failures": told} if told else {})


def _file(
    law: Law,
    trial: Trial,
    record: Callable[[str, Any], None],
    filed: Mapping[str, Any],
    verdict: str,
    words: str,
    found: Search,
    remarks: list[str],
    fails: bool,
    beside: Mapping[str, Any],
) -> None:
    """File a verdict, and end the law's test with it. ``words``: the reason, if the law does not hold."""
    if verdict in (SIM_ONLY, SHOWS_NOTHING):
        remarks.append(words)
    if verdict.startswith(HOLDS) and found.refusals:
        beside = {**beside, "refused": len(found.refusals), "refusals": _kinds(found)}
    record(PROPERTY, {**filed, "verdict": verdict, "examples": found.examples, **beside})
    for remark in (*remarks, *_remarks(trial, found, fails)):
        warnings.warn(f"{trial.implementation.name}: {sentence(law)}: {remark}", stacklevel=2)
    if fails:
        pytest.fail(words, pytrace=False)
    if verdict == NOT_RUNNABLE or verdict.startswith(IMPOSSIBLE):
        pytest.skip(words)


def _searched(
    law: Law, trial: Trial, spend: Callable[[Law, Trial], Search], remarks: list[str]
) -> tuple[Trial, Search]:
    """Search, and repeat the search if a busy machine or the remains of earlier examples may have caused a failure.

    Gives the trial and the result. In the trial each example has its own processes if that was needed.
    """
    found = spend(law, trial)
    if trial.world.name == "sim" and paused(law, trial, found.failures):
        remarks.append(PAUSED)
        found = spend(law, trial)
    if trial.world.name == "sim" and owes_to_sharing(law, trial, found.failures):
        trial = replace(trial, own_state=True, witnessed=Counter())
        remarks.append(SHARED)
        found = spend(law, trial)
    if found.stale or owes_to_the_past(law, trial, found.failures):
        trial = replace(trial, apart=True, witnessed=Counter())
        found = spend(law, trial)
    return trial, found


def _confirmed(law: Law, trial: Trial, budget: Budget, found: Search) -> tuple[list[Failure], list[str]]:
    """The failures that occur again in a second run. If there are none: the witnesses of the law that are missing."""
    candidates = [*found.failures, *_behind_the_loud(law, trial, budget, found.failures)]
    failures = [confirmed for failure in candidates if (confirmed := confirm(law, trial, failure)) is not None]
    if found.failures or not trial.witnessed[ENDED]:
        return failures, []
    try:
        return failures, unwitnessed(law, trial)
    except LawBroken as broken:  # raised by the law's own example, which is small already
        return [Failure(None, broken)], []


def _remarks(trial: Trial, found: Search, fails: bool) -> Iterator[str]:
    """The warnings of a search, whatever the verdict."""
    if not fails and 2 * len(found.refusals) > found.examples:
        refused = f"{len(found.refusals)} of {found.examples} examples were refused"
        yield f"{refused}, mostly so: {next(iter(_kinds(found)))}"
    if trial.apart and not found.failures:
        yield PAST
    if trial.left:
        yield f"leaves behind {', '.join(sorted(trial.left))}; what it ran on was ended after each such example"


def _behind_the_loud(law: Law, trial: Trial, budget: Budget, failures: Sequence[Failure]) -> list[Failure]:
    """Silent failures, searched for if every failure so far raises or hangs, because silent ones are the worst."""
    broken = [failure.broken for failure in failures]
    if not broken or any(isinstance(each, SilentlyWrong) or took_the_clock(each) for each in broken):
        return []
    return budget.look_behind(law, trial).failures


def _kinds(found: Search) -> dict[str, int]:
    """The number of refusals of each kind, by the words of its first; the most frequent first."""
    first = {alike(str(each)): str(each) for each in found.refusals[::-1]}
    return {first[kind]: times for kind, times in Counter(alike(str(each)) for each in found.refusals).most_common()}
