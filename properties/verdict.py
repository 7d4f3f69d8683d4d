"""How a law against an implementation ends, and what is known of a failure.

    holds, refuses, silently wrong, wasteful, hangs, crashes, not claimed, not runnable here, sim only, shows nothing;
    of kernels wrong; where a world cannot have the law, cannot be told; where it or Lockstep is at fault, not judged

A failure is an exception, so that Hypothesis shrinks each kind to a smallest example of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.properties.difference import Difference
from lockstep.worlds.contract import Outcome

HOLDS, REFUSES, SHOWS_NOTHING, NOT_RUNNABLE = "holds", "refuses", "shows nothing", "not runnable here"
SIM_ONLY, NOT_CLAIMED, WRONG = "sim only, no failure", "not claimed", "wrong"
IMPOSSIBLE = "cannot be told"  # of a real backend: when it reads and writes, in which order it reduces, what it holds
BACKEND_AT_FAULT = "not judged: the backend is at fault"
ERROR_IN_LOCKSTEP = "not judged: error in Lockstep"


@dataclass(eq=False)  # an exception is equal to itself alone
class LawBroken(AssertionError):
    """An implementation failed a law on a scenario. ``headline``: the law broken, in words.

    ``choices``: how the simulated world was told to run it, see `properties.trial.Run`.
    """

    headline: str
    scenario: Any  # a Scenario; of P14, a `properties.wrapper_call.Call`
    outcome: Outcome = field(repr=False)
    difference: Difference | None = None
    choices: Mapping[str, Any] = field(default_factory=dict, repr=False)

    verdict = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.headline} Scenario: {self.scenario!r}"

    @property
    def result(self) -> str:
        """The headline as a sentence."""
        return self.headline[:1].upper() + self.headline[1:]

    def same_as(self, other: "LawBroken") -> bool:
        """Whether the other failure shows the same: the same verdict, and the same bits at the first difference."""
        return type(self) is type(other) and repr(self.difference) == repr(other.difference)


class SilentlyWrong(LawBroken):
    """Wrong values, or less held or sent than they take, and nobody is told."""

    verdict = "silently wrong"


class Wasteful(LawBroken):
    """Right values, at a higher price than promised."""

    verdict = "wasteful"


class Hangs(LawBroken):
    """Some rank waits for ever."""

    verdict = "hangs"


class Crashes(LawBroken):
    """An error on some ranks, or one that explains nothing."""

    verdict = "crashes"


class Refused(Exception):
    """The implementation said, on every rank and before any harm, that it does not do this. Not a failure.

    ``outcome`` and ``choices``: as of a `LawBroken`.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.choices: Mapping[str, Any] = {}


class NotRunnableHere(Refused):
    """The world cannot run what the implementation does, which says nothing against it."""
