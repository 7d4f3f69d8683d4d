"""A run that has so much time, and no number of examples: each law has a part of what is left when its turn comes.

A law that others seldom show has most of it, by its share (`properties.law`): of what every run shows, enough is seen
anyway.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.properties.implementations import Unusable
from lockstep.properties.law import Law
from lockstep.properties.running.profiles import TIMES_AS_LONG

PORTION, MOST = 5, 10_000  # examples of a law on sim: at least, and at most
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(words: str) -> float:
    """The seconds of a text such as "90", "60s", "5m" or "1h". Raises Unusable for any other."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", words.strip())
    if match is None or not float(match[1]):
        raise Unusable(f"--budget {words}: write a time, such as 60s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


@dataclass
class Pace:
    """``seconds``: for all laws that this process holds, from the first on. ``processes``: that share the laws."""

    seconds: float
    processes: int = 1
    _left: dict[tuple[str, str, bool], float] = field(default_factory=dict)
    _ends: float | None = None

    def expect(self, held: Iterable[tuple[str, Law, bool]]) -> None:
        """Says which laws all processes will hold: the name of the implementation, the law, and whether on real
        processes.
        """
        self._left = {(name, law.name, real): law.share for name, law, real in held}

    def until(self, name: str, law: Law, real: bool) -> float:
        """The time at which a law that begins now is to end, by `time.monotonic`."""
        now = time.monotonic()
        self._ends = self._ends or now + self.seconds
        mine = max(sum(self._left.values()) / self.processes, law.share)
        self._left.pop((name, law.name, real), None)
        return now + max(0.0, self._ends - now) * law.share / mine


def portion(real: bool) -> int:
    """The examples after which a law looks at the clock, and which it has however little time is left."""
    return max(1, PORTION // TIMES_AS_LONG) if real else PORTION
