"""Scenarios with combinations of features that are rare by chance."""

from functools import lru_cache

from hypothesis import strategies as st

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.scenarios import exact_scenarios


def with_any(claims: Claims, most: int = 3, has: tuple[str, ...] = ()) -> st.SearchStrategy[Scenario]:
    """Scenarios with up to ``most`` of the claimed features beside those in ``has``, each feature equally often.

    They shrink to fewer features, and to none. Combinations that no program can have, for example momentum and Adam,
    are drawn in vain.
    """
    names = ["", *(name for name, feature in FEATURES.items() if feature.claimed(claims) and not feature.by_chance)]
    any_of_them = st.tuples(*[st.sampled_from(names)] * most)
    return any_of_them.flatmap(lambda these: _having(claims, frozenset((*these, *has)) - {""}))


@lru_cache
def _having(claims: Claims, features: frozenset[str]) -> st.SearchStrategy[Scenario]:
    return exact_scenarios(claims, has=tuple(name for name in FEATURES if name in features))
