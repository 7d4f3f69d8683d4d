"""The cause of a defect: what a minimal failing program cannot do without, and whether another program contains it."""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.claim import told as declared
from lockstep.properties.claims import Claims
from lockstep.properties.defects.needs import has, is_counted, is_named
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.within import beyond

MORE_DIGITS = "numbers with more digits than "  # and a dtype: a need of values, and not of programs


@dataclass(frozen=True)
class Cause:
    """``needs``: names of `properties.defects.needs`; none: the plainest program fails. ``only``: the number of the
    family of laws, such as "P18", of which a program must be judged for it to show; empty: it goes wrong by itself.
    """

    needs: frozenset[str]
    only: str = ""

    def within(self, drawn: Any, family: str = "") -> bool:
        """True if a program or call that a law of this family is about to run contains it."""
        return bool(self.needs) and self.only in ("", family) and self.needs <= has(drawn)

    @property
    def rounds_to(self) -> str:
        """The dtype that has too few digits, if that is the cause; else empty."""
        return next((need.removeprefix(MORE_DIGITS) for need in self.needs if need.startswith(MORE_DIGITS)), "")

    @property
    def telling(self) -> frozenset[str]:
        """The needs to tell: its features; without any, the fields that are not as usual, and numbers last."""
        for told in (is_named, lambda need: not is_counted(need), lambda need: True):
            if found := frozenset(filter(told, self.needs)):
                return found
        return frozenset()

    def words(self) -> str:
        """It, for people."""
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
    """By the name of each claim without which a program would not be drawn, the claims without it."""
    found = {}
    for each in fields(Claims):
        value = getattr(claims, each.name)
        if (without := off(each.name, value)) != value:
            with suppress(ValueError):  # others go with it
                less = replace(claims, **{each.name: without})
                if beyond(less, scenario):
                    found[each.name] = less
    return found


def exact_claim(claims: Claims, cause: Cause, scenario: Scenario) -> str:
    """The claim that says just what a cause is: declined, it leaves out the programs that contain it, and no others.

    Empty where there is none.
    """
    for name, less in declining(claims, scenario).items():
        before = {each for each, feature in FEATURES.items() if feature.claimed(claims)}
        gone = {each for each in before if not FEATURES[each].claimed(less)} | {beyond(less, scenario)}
        if cause.telling == gone:
            return name
    return ""
