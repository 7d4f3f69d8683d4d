"""The verdicts of a law against an implementation, and the failures that lead to them.

    holds, refuses, silently wrong, wasteful, hangs, crashes, not claimed, not runnable here, sim only, shows nothing;
    of kernels wrong; where a world cannot show the law, cannot be judged; where it or Lockstep is at fault, not judged

A failure is an exception, so that Hypothesis shrinks each kind to a smallest example of its own.

In a run against a user's code what is wrong is told as *defects*, D1, D2, ... in the order in which they are found. The
programs that contain a defect's cause are set aside from then on, and a law ends in these terms:

    holds apart from D1              programs that contain it were left out; no other breaks the law
    broken by D2                     found under this law, or known, and met under it once more
    cannot be judged: D1 breaks every program that it needs

What a law's test files with pytest (`record(PROPERTY, filed)`, `properties.reports.matrix.PROPERTY`) is a dict:

    number, law, implementation, world      such as "P1", "gradients equal the mean over ranks", "my_ddp:MyDDP", "sim"
    verdict                                 in words, as above
    examples                                how many programs were run; not there where nothing was
    refused, refusals                       how many of them, and {words: how often}; only if there are some
    failures                                of a law that is broken, a list of the dicts below
    broken_by                               ["D2"]: the defects that break it; not there where none does
    left_out                                {"D1": 12}: programs left out by defect; not there where none was
    defects                                 a list of the defects first found under this law, as the dicts below

A failure, as `properties.reports.failure.filed_failure` makes it: ``verdict`` ("silently wrong"), ``report`` (for
people), ``scenario`` (its repr), ``script`` (a path, or ""), ``cause``, ``plain``, ``size``, ``diagnosis``; under a
defect it is one face of it, and has its ``defect`` ("D1") too. Of a kernel it has no ``diagnosis``.

A defect, as `properties.defects.defect.Defect.filed` makes it:

    id                  "D1"
    implementation      "my_ddp:MyDDP"
    number, law         the law that its smallest program breaks, such as "P1", "gradients equal the mean over ranks"
    met_in              the law under which it was found, such as "P3 no sync accumulates and then counts once"
    world               on which it was found
    verdict             of all its faces, such as "silently wrong and crashes"
    cause               in words, such as "different hook orders"
    needs               the same as a sorted list of names, which are the same in every run
    claim               the claim that says just that, such as "hook_order"; "" where there is none
    stops               whether the plainest program shows it, so that nothing else can be told
    scenario, script    of the first face: the smallest program, and the file that shows it ("" where there is none)
    told                the file with its report; "" where none could be written
    faces               a list of failures, as above
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.properties.difference import Difference
from lockstep.worlds.contract import Outcome

HOLDS, REFUSES, SHOWS_NOTHING, NOT_RUNNABLE = "holds", "refuses", "shows nothing", "not runnable here"
SIM_ONLY, NOT_CLAIMED, WRONG = "sim only, no failure", "not claimed", "wrong"
TRIED = f"{NOT_CLAIMED}; tried: "  # and the end of a law on a few programs, of which none fails a run
# Of a real backend: when it reads and writes, in which order it reduces, what it holds. With words behind it: for a
# defect that breaks everything the law needs.
IMPOSSIBLE = "cannot be judged"
BACKEND_AT_FAULT = "not judged: the backend is at fault"
ERROR_IN_LOCKSTEP = "not judged: error in Lockstep"


@dataclass(eq=False)  # an exception is equal to itself alone
class LawBroken(AssertionError):
    """An implementation failed a law on a scenario. ``headline``: the law broken, in words.

    ``choices``: how the simulated world was told to run it, see `properties.trial.Run`. ``law``: the name of the law,
    where that is another than the one for which the scenario was drawn.
    """

    headline: str
    scenario: Any  # a Scenario; of what is no program, a `properties.exercise.Exercise`
    outcome: Outcome = field(repr=False)
    difference: Difference | None = None
    choices: Mapping[str, Any] = field(default_factory=dict, repr=False)
    law: str = ""

    verdict = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.headline} Scenario: {self.scenario!r}"

    @property
    def result(self) -> str:
        """The headline as a sentence."""
        return self.headline[:1].upper() + self.headline[1:]

    def same_as(self, other: "LawBroken") -> bool:
        """True if the other failure shows the same: the same verdict, and the same bits at the first difference."""
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
