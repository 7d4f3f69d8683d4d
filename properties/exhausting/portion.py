"""A portion of a hundred programs of the core language, run in one process."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.confirming import confirm
from lockstep.properties.errors import alike
from lockstep.properties.exhausting import language
from lockstep.properties.exhausting.judged import DELIVERED, asked, check, plainest
from lockstep.properties.searching.search import Failure
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, NotRunnableHere, Refused

SIZE = 100  # programs
# Reasons why a failure does not count.
ONLY_AFTER_OTHERS = "holds in fresh processes, and fails only after others, or where ranks share global variables"
ONLY_ON_SIM = "fails on the simulated world only, with any timing: ranks share one process there"


@dataclass
class Found:
    """The results of some programs.

    - ``held``: the programs that every rank ran with the right result.
    - ``runs``: the number of runs, one for each delivery.
    - ``left_out``: programs that did not run, by reason.
    - ``refused``: programs that were refused, by message.
    - ``excused``: programs whose failure does not count, by reason.
    - ``digest``: of the texts of the programs that ran, in order.
    """

    held: int = 0
    runs: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    seconds: float = 0.0

    def add(self, more: "Found") -> None:
        """Add the results of other programs. The digest stays unchanged."""
        self.held, self.runs, self.seconds = self.held + more.held, self.runs + more.runs, self.seconds + more.seconds
        self.left_out += more.left_out
        self.refused += more.refused
        self.excused += more.excused

    def as_json(self) -> dict[str, Any]:
        """The results as plain data."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Found":
        """Read the data that `as_json` gives."""
        counters = {name: Counter(told[name]) for name in ("left_out", "refused", "excused")}
        return cls(told["held"], told["runs"], **counters, digest=told["digest"], seconds=told["seconds"])


def look(trial: Trial, begin: int, end: int, size: int) -> tuple[Found, int | None]:
    """Run the programs with these numbers. Stop at the first that fails, and return its number.

    ``size``: the size up to which the programs are numbered.
    """
    found, digest, since = Found(), sha256(), time.monotonic()
    failing = None
    for number, (shape, orders) in enumerate(language.programs(size, begin, end), begin):
        scenario = asked(trial, shape, orders)
        if isinstance(scenario, str):
            found.left_out[scenario] += 1
            continue
        digest.update(f"{scenario!r}\n".encode())
        try:
            found.runs += check(trial, scenario, shape.size <= DELIVERED)
            found.held += 1
        except NotRunnableHere:
            raise
        except Refused as refused:
            found.runs += 1
            found.refused[alike(str(refused))] += 1
        except LawBroken as broken:
            found.runs += 1
            if why := excuse(trial, scenario, broken, shape.size <= DELIVERED):
                found.excused[why] += 1
            else:
                failing = number
                break
    found.digest, found.seconds = digest.hexdigest(), time.monotonic() - since
    return found, failing


def excuse(trial: Trial, scenario: Scenario, broken: LawBroken, delivered: bool) -> str:
    """The reason why a failure does not count. Empty if it fails in fresh processes too, and not on sim alone."""
    try:
        check(replace(trial, apart=True, own_state=True, witnessed=Counter()), scenario, delivered)
    except (LawBroken, Refused):
        law, drawn, again = plainest(trial, scenario, broken)
        return ONLY_ON_SIM if confirm(law, trial, Failure(drawn, again)) is None else ""
    return ONLY_AFTER_OTHERS
