"""The frequency with which features, and pairs of them, occur in drawn programs."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.strategies.features import FEATURES

SELDOM = 5  # features and pairs in fewer programs than this are reported


def meetings(drawn: Iterable[Scenario], claims: Claims) -> dict[tuple[str, ...], int]:
    """The number of programs with each claimed feature and with each pair of them."""
    names = [name for name, feature in FEATURES.items() if feature.claimed(claims)]
    counted: Counter[tuple[str, ...]] = Counter()
    for scenario in drawn:
        there = [name for name in names if FEATURES[name].occurs(scenario)]
        counted.update((name,) for name in there)
        counted.update(combinations(there, 2))
    everything = [*((name,) for name in names), *combinations(names, 2)]
    return {each: counted[each] for each in everything}
