"""Probes: claims that the code neither makes nor declines are tried on a few examples and reported."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial

from lockstep.properties.claim import told
from lockstep.properties.claims import Claims
from lockstep.properties.defects.aside import Aside
from lockstep.properties.defects.defect import Defect
from lockstep.properties.implementations import Implementation
from lockstep.properties.law import Law, concerns
from lockstep.properties.running.unbroken import without_failure
from lockstep.properties.searching.search import SHRINK_LIMIT, Search, refused_for_the_past, took_the_clock
from lockstep.properties.searching.search import search as searched
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import (
    HOLDS,
    IMPOSSIBLE,
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
# The claims that are probed for sharded optimizers; the others are about wrappers of a model.
OF_OPTIMIZERS = ("tied_parameters", "unfreezing", "missing_gradients")
# If any of several claims enables a law, the best verdict counts.
NO_FAILURE = (HOLDS, REFUSES, NOT_RUNNABLE, IMPOSSIBLE, SHOWS_NOTHING)
BEST_FIRST = (*NO_FAILURE, *(kind.verdict for kind in (Wasteful, Crashes, Hangs, SilentlyWrong)))


def alternatives(law: Law, implementation: Implementation) -> list[Claims]:
    """The claims that would enable the law: the implementation's own with one more of which it says nothing.

    None if the law applies already, or if the implementation declines a claim that the law needs.
    """
    if concerns(law, implementation.claims):
        return []
    return [claims for claims in one_more(implementation) if concerns(law, claims)]


def one_more(implementation: Implementation) -> Iterator[Claims]:
    """The claims of an implementation, each time with one more that it says nothing of and may fulfil nevertheless."""
    for each in fields(Claims):
        declared, shape = told(each), implementation.shape
        lacks = declared.lacking is not None and shape is not None and declared.lacking(shape)
        wrappers = implementation.claims.is_optimizer and each.name not in OF_OPTIMIZERS
        if each.name in implementation.undeclared and not lacks and not wrappers:
            for value in (value for value in declared.probed if value != getattr(implementation.claims, each.name)):
                with contextlib.suppress(ValueError):  # it contradicts another claim
                    yield replace(implementation.claims, **{each.name: value})


def probe(law: Law, trial: Trial, known: Sequence[Defect] = ()) -> tuple[str, int]:
    """The verdict of a law in words, and the number of examples; the same in every run.

    ``known``: the defects to set aside. If they leave nothing to draw, the verdict says that the law cannot be judged.
    """
    ends, examples = [], 0
    for claims in alternatives(law, trial.implementation):
        claiming = replace(trial.implementation, claims=claims)
        aside = Aside(known, law, claims)
        if aside.takes_all or any(defect.stops for defect in known):
            ends.append(IMPOSSIBLE)
            continue
        tried = replace(trial, implementation=claiming, limit=SHRINK_LIMIT, witnessed=Counter(), aside=aside)
        search = partial(searched, draws=aside.draws())
        found = search(law, tried, EXAMPLES, seed_value=0, shrink=False)
        if any(took_the_clock(failure.broken) for failure in found.failures):  # a hang, or a slow machine
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
    """The verdict of a law that no drawn example has broken."""
    try:
        return without_failure(trial, found, unwitnessed(law, trial) if trial.witnessed[ENDED] else [])[0]
    except LawBroken as broken:
        return broken.verdict
