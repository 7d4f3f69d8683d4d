"""The verdicts of a law on an implementation, and the failures that lead to them.

The verdicts:

    holds, refuses, silently wrong, wasteful, hangs, crashes, not claimed, not runnable here, sim only, shows nothing;
    for kernels: wrong; if a world cannot show the law: cannot be judged; if it or Lockstep is at fault: not judged

A failure is an exception, so that Hypothesis shrinks each kind to a smallest example of its own.

A run against a user's code reports *defects*, D1, D2, ... in the order in which they are found. The programs that
contain a defect's cause are then set aside, and a law ends in these terms:

    holds apart from D1              programs that contain it were left out; no other breaks the law
    broken by D2                     found under this law, or known and found under it again
    cannot be judged: D1 breaks every program that it needs

A law's test files a dict with pytest (`record(PROPERTY, filed)`, `properties.reports.matrix.PROPERTY`):

    number, law, implementation, world      "P1", "gradients equal the mean over ranks", "my_ddp:MyDDP", "sim"
    verdict                                 in words, as above
    examples                                the number of programs that were run; missing if none was
    refused, refusals                       the number that were refused, and {words: count}; only if there are some
    failures                                a list of the dicts below, if the law is broken
    broken_by                               ["D2"]: the defects that break it; missing if there are none
    left_out                                {"D1": 12}: programs left out by defect; missing if there are none
    defects                                 a list of the defects first found under this law, as the dicts below

A failure, made by `properties.reports.failure.filed_failure`, has: ``verdict`` ("silently wrong"), ``report`` (for
people), ``scenario`` (its repr), ``script`` (a path, or ""), ``cause``, ``plain``, ``size`` and ``diagnosis``. One that
is a face of a defect also has its ``defect`` ("D1"). A failure of a kernel has no ``diagnosis``.

A defect, made by `properties.defects.defect.Defect.filed`, has:

    id                  "D1"
    implementation      "my_ddp:MyDDP"
    number, law         the law that its smallest program breaks: "P1", "gradients equal the mean over ranks"
    met_in              the law under which it was found: "P3 no sync accumulates and then counts once"
    world               the world on which it was found
    verdict             of all its faces: "silently wrong and crashes"
    cause               in words: "different hook orders"
    needs               the same as a sorted list of names, which are the same in every run
    claim               the claim that covers exactly its cause: "hook_order"; "" if there is none
    stops               true if the plainest program shows it, so that nothing else can be judged
    scenario, script    of the first face: the smallest program, and the script that shows it ("" if there is none)
    told                the file with its report; "" if none could be written
    faces               a list of failures, as above
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.properties.difference import Difference
from lockstep.properties.naming import enumerated
from lockstep.worlds.contract import Outcome

HOLDS, REFUSES, SHOWS_NOTHING, NOT_RUNNABLE = "holds", "refuses", "shows nothing", "not runnable here"
SIM_ONLY, NOT_CLAIMED, WRONG = "sim only, no failure", "not claimed", "wrong"
# The verdict on a law that is not claimed, after a few programs, with the result behind it; it fails no run.
TRIED = f"{NOT_CLAIMED}; tried: "
# The law is about something that cannot be observed on a real backend: when it reads and writes, its order of
# reduction, or the bytes that it holds. With words added, a defect breaks every program that the law needs.
IMPOSSIBLE = "cannot be judged"
APART, BROKEN = f"{HOLDS} apart from ", "broken by "  # before the ids of defects, see `listed`
BACKEND_AT_FAULT = "not judged: the backend is at fault"
ERROR_IN_LOCKSTEP = "not judged: error in Lockstep"


def listed(ids: Iterable[str]) -> str:
    """The ids of defects, in order: "D1", "D1 and D2", "D1, D2 and D10"."""
    return enumerated(sorted(ids, key=lambda each: int(each[1:])))


@dataclass(eq=False)  # exceptions compare by identity
class LawBroken(AssertionError):
    """An implementation broke a law on a scenario. ``headline``: the broken law, in words.

    ``choices``: the options of the simulated world, see `properties.trial.Run`. ``law``: the name of the broken law, if
    it is not the one for which the scenario was drawn.
    """

    headline: str
    scenario: Any  # a Scenario or, if it is no program of events, a `properties.exercise.Exercise`
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
    """Wrong values, or less held or sent than necessary, without any error."""

    verdict = "silently wrong"


class Wasteful(LawBroken):
    """Right values, at a higher price than promised."""

    verdict = "wasteful"


class Hangs(LawBroken):
    """Some rank waits forever."""

    verdict = "hangs"


class Crashes(LawBroken):
    """An error on some ranks only, or one without an explanation."""

    verdict = "crashes"


class Refused(Exception):
    """The implementation said on every rank, before any harm, that it does not support this. Not a failure.

    ``outcome`` and ``choices``: as in `LawBroken`.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.choices: Mapping[str, Any] = {}


class NotRunnableHere(Refused):
    """The world cannot run the program, although the implementation does not refuse it."""
