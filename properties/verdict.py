"""How a law against an implementation ends, in eight words, and what is known of a failure.

    holds, refuses, silently wrong, hangs, crashes, wasteful, not claimed, not runnable here

A failure is an exception, so that Hypothesis shrinks each kind to a smallest example of its own.
"""

from dataclasses import dataclass, field
from typing import Any

from oracle.program import Scenario
from worlds.contract import Outcome


@dataclass(frozen=True)
class Difference:
    """The first element that is not what it must be. ``place``: of the event after which it was seen; -1: construction.

    ``quantity``: "gradient", "parameter", "norm", "loss scale", "buffer", or what the optimizer's state is called.
    ``parameter``: which one, or which buffer. ``actual`` and ``expected`` are None where there is none; else a whole
    array (the expected one may be an interval), and ``element`` says where in it.
    """

    quantity: str
    place: int
    rank: int
    parameter: int
    element: tuple[int, ...]
    actual: Any
    expected: Any


@dataclass(eq=False)  # an exception is equal to itself alone
class LawBroken(AssertionError):
    """An implementation failed a law on a scenario. ``headline``: the law broken, in words."""

    headline: str
    scenario: Scenario
    outcome: Outcome = field(repr=False)
    difference: Difference | None = None

    verdict = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.headline} Scenario: {self.scenario!r}"

    def same_as(self, other: "LawBroken") -> bool:
        """Whether the other failure shows the same: the same verdict, and the same bits at the first difference."""
        return type(self) is type(other) and repr(self.difference) == repr(other.difference)


class SilentlyWrong(LawBroken):
    """Wrong values, and nobody is told."""

    verdict = "silently wrong"


class Hangs(LawBroken):
    """Some rank waits for ever."""

    verdict = "hangs"


class Crashes(LawBroken):
    """An error on some ranks, or one that explains nothing."""

    verdict = "crashes"


class Wasteful(LawBroken):
    """Right values, for more messages or bytes than promised."""

    verdict = "wasteful"


class Refused(Exception):
    """The implementation said, on every rank and before any harm, that it does not do this. Not a failure."""


class NotRunnableHere(Refused):
    """The world cannot run what the implementation does, which says nothing against it."""
