"""Additional programs for a run of a given time: neighbours of refused programs, and programs with rare features."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.law import Law
from lockstep.properties.searching.least import neighbours
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import FEATURES, anything, features_meet
from lockstep.properties.strategies.scenarios import comparable
from lockstep.properties.strategies.within import beyond

NEIGHBOURS = 20  # the number of neighbours of a refused program that are drawn


@dataclass
class Seldom:
    """The number of times that each feature was drawn for any law, and the refusals whose neighbours were drawn."""

    features: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)

    def ran(self, scenario: Scenario) -> None:
        """Note that a program has run."""
        self.features.update(name for name, feature in FEATURES.items() if feature.occurs(scenario))

    def draws(self, law: Law, claims: Claims, refused: Mapping[str, Any]) -> st.SearchStrategy[Scenario] | None:
        """The strategy for the next programs of a law; None: the law's own.

        ``refused``: a program for each kind of refusal.
        """
        if law.shown_by is None:
            return None
        for kind, drawn in refused.items():
            if kind not in self.refused and isinstance(drawn, Scenario):
                self.refused.add(kind)
                if near := list(islice(self._near(law, claims, drawn), NEIGHBOURS)):
                    return st.sampled_from(near)
        if law.shown_by not in (anything, features_meet):
            return None
        rarest = self._rarest(claims)
        self.features[rarest] += 1  # also if no program of this law has it
        return with_any(claims, most=1, has=(rarest,)).filter(law.shown_by)

    def _near(self, law: Law, claims: Claims, drawn: Scenario) -> Any:
        for each in neighbours(drawn):
            known = not beyond(claims, each) and comparable(each, claims) is not None
            if known and law.shown_by is not None and law.shown_by(each):
                yield each

    def _rarest(self, claims: Claims) -> str:
        some = [name for name, feature in FEATURES.items() if feature.claimed(claims) and not feature.by_chance]
        return min(some, key=lambda name: self.features[name])
