"""The cause of a defect: the features that a minimal failing program needs."""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.claim import told as declared
from lockstep.properties.claims import Claims
from lockstep.properties.defects.needs import has, is_counted, is_named
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.within import beyond

MORE_DIGITS = "numbers with more digits than "  # followed by a dtype; a need of the values, not of the program


@dataclass(frozen=True)
class Cause:
    """The cause of a defect.

    ``needs``: names from `properties.defects.needs`; empty if the plainest program fails. ``only``: the number of the
    family of laws, for example "P18", that must judge a program to see the defect; empty if any law sees it.
    """

    needs: frozenset[str]
    only: str = ""

    def within(self, drawn: Any, family: str = "") -> bool:
        """True if the law of this family is about to run a program or call that contains the cause."""
        return bool(self.needs) and self.only in ("", family) and self.needs <= has(drawn)

    @property
    def rounds_to(self) -> str:
        """The dtype with too few digits, if that is the cause; else empty."""
        return next((need.removeprefix(MORE_DIGITS) for need in self.needs if need.startswith(MORE_DIGITS)), "")

    @property
    def telling(self) -> frozenset[str]:
        """The needs to report: features if there are any, else unusual fields, else numbers."""
        for told in (is_named, lambda need: not is_counted(need), lambda need: True):
            if found := frozenset(filter(told, self.needs)):
                return found
        return frozenset()

    def words(self) -> str:
        """The cause in words."""
        return ", ".join(sorted(self.telling)) or "the plainest program"


def of_rounding(dtype: str) -> Cause:
    """The cause that a dtype has too few digits."""
    return Cause(frozenset({f"{MORE_DIGITS}{dtype}"}))


def off(name: str, value: Any) -> Any:
    """The value of a claim that is declined; its own value if it cannot be declined."""
    if value is True or value is False:
        return False
    of = next(each for each in fields(Claims) if each.name == name)
    return None if None in declared(of).choices else value


def declining(claims: Claims, scenario: Scenario) -> dict[str, Claims]:
    """For each claim that a program needs, by name: the claims without it."""
    found = {}
    for each in fields(Claims):
        value = getattr(claims, each.name)
        if (without := off(each.name, value)) != value:
            with suppress(ValueError):  # another claim depends on this one
                less = replace(claims, **{each.name: without})
                if beyond(less, scenario):
                    found[each.name] = less
    return found


def exact_claim(claims: Claims, cause: Cause, scenario: Scenario) -> str:
    """The claim that covers exactly a cause: declining it leaves out all programs with the cause, and no others.

    Empty if there is none.
    """
    for name, less in declining(claims, scenario).items():
        before = {each for each, feature in FEATURES.items() if feature.claimed(claims)}
        gone = {each for each in before if not FEATURES[each].claimed(less)} | {beyond(less, scenario)}
        if cause.telling == gone:
            return name
    return ""
