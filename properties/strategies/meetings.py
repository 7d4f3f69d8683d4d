"""The frequency with which features, and pairs of them, occur in the programs of a run of all laws."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.law import concerns
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.independent import sample

SELDOM = 5  # whatever occurs in fewer programs is told


def drawn_by_laws(claims: Claims, examples: int) -> list[Scenario]:
    """The programs that the laws draw for code that claims this; ``examples``: of a law that draws its whole share.

    Laws that draw more than a program, such as two to compare, are left out.
    """
    found: list[Scenario] = []
    for law in every_law().values():
        if concerns(law, claims):
            drawn = sample(law.draws(claims), max(1, round(examples * law.share)))
            found += [each for each in drawn if isinstance(each, Scenario)]
    return found


def meetings(drawn: Iterable[Scenario], claims: Claims) -> dict[tuple[str, ...], int]:
    """By feature that is claimed, and by pair of them, the number of programs that have it."""
    names = [name for name, feature in FEATURES.items() if feature.claimed(claims)]
    counted: Counter[tuple[str, ...]] = Counter()
    for scenario in drawn:
        there = [name for name in names if FEATURES[name].occurs(scenario)]
        counted.update((name,) for name in there)
        counted.update(combinations(there, 2))
    everything = [*((name,) for name in names), *combinations(names, 2)]
    return {each: counted[each] for each in everything}
