"""The claims without which a failure does not occur. They are found by running programs without them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis.errors import Unsatisfiable

from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.core import goes_wrong, manner
from lockstep.properties.searching.search import SHRINK_LIMIT, took_the_clock
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken

TRIED = 8  # programs without the claim that are run; none may fail in the same manner


def hangs_on(trial: Trial, broken: LawBroken, scenario: Scenario) -> Iterator[str]:
    """The assumed, undeclared claims without which nothing fails in this manner.

    ``scenario``: the smallest failing program.
    """
    of, way = trial.implementation, manner(broken)
    for name in of.undeclared:
        if getattr(of.claims, name) is not True:
            continue
        less = replace(of.claims, **{name: False})  # type: ignore[arg-type]
        if not beyond(less, scenario):
            continue
        tried = replace(
            trial, implementation=replace(of, claims=less), confirm_on=None, limit=SHRINK_LIMIT, witnessed=Counter()
        )
        try:
            others = [] if took_the_clock(broken) else sample(exact_scenarios(less), TRIED)
        except Unsatisfiable:
            others = []
        if not any(manner(goes_wrong(tried, each)) == way for each in others):
            yield name
