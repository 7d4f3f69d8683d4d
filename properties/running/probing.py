"""What code that declares nothing does where nothing is claimed for it: tried on a few examples, and told."""

from collections import Counter
from dataclasses import fields, replace

from lockstep.properties.claim import told
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import Implementation
from lockstep.properties.law import Law, concerns
from lockstep.properties.running.unbroken import without_failure
from lockstep.properties.searching.search import SHRINK_LIMIT, Search, refused_for_the_past, search, took_the_clock
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import (
    HOLDS,
    NOT_RUNNABLE,
    REFUSES,
    SHOWS_NOTHING,
    Crashes,
    Hangs,
    LawBroken,
    SilentlyWrong,
    Wasteful,
)

EXAMPLES = 20
# What such code may be right about all the same, claim by claim. The others need a method or an argument that it would
# have to offer.
ONE_MORE = [{each.name: value} for each in fields(Claims) for value in told(each).probed]
# Of several claims that a law would do with, that counts which the code comes closest to keeping.
NO_FAILURE = (HOLDS, REFUSES, NOT_RUNNABLE, SHOWS_NOTHING)
BEST_FIRST = (*NO_FAILURE, *(kind.verdict for kind in (Wasteful, Crashes, Hangs, SilentlyWrong)))


def alternatives(law: Law, implementation: Implementation) -> list[Claims]:
    """The claims with which the law would be about the implementation, were it to claim one thing more; none if it
    says itself what it claims.
    """
    if implementation.declares or concerns(law, implementation.claims):
        return []
    wider = [replace(implementation.claims, **more) for more in ONE_MORE]
    return [claims for claims in wider if concerns(law, claims)]


def probe(law: Law, trial: Trial) -> tuple[str, int]:
    """How the law ends, in the words of the verdicts, and on how many examples; the same in every run."""
    ends, examples = [], 0
    for claims in alternatives(law, trial.implementation):
        claiming = replace(trial.implementation, claims=claims)
        tried = replace(trial, implementation=claiming, limit=SHRINK_LIMIT, witnessed=Counter())
        found = search(law, tried, EXAMPLES, seed_value=0, shrink=False)
        if any(took_the_clock(failure.broken) for failure in found.failures):  # or the machine was slow
            found = search(law, replace(tried, limit=None), EXAMPLES, seed_value=0, shrink=False)
        if refused_for_the_past(law, tried, found):
            tried = replace(tried, apart=True, witnessed=Counter())
            found = search(law, tried, EXAMPLES, seed_value=0, shrink=False)
        examples += found.examples
        if found.failures:
            ends.append(found.failures[0].broken.verdict)
        else:
            ends.append(_shown(law, tried, found))
    return min(ends, key=BEST_FIRST.index), examples


def _shown(law: Law, trial: Trial, found: Search) -> str:
    """How a law ends that no drawn example has broken."""
    try:
        return without_failure(trial, found, unwitnessed(law, trial) if trial.witnessed[ENDED] else [])[0]
    except LawBroken as broken:
        return broken.verdict
