"""A run with a time instead of a number of examples. Each law gets a part of the time that is left when its turn comes.

Laws that have been judged on the fewest runs get most of it. Runs made for other laws count.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.properties.implementations import Unusable
from lockstep.properties.law import Law, sentence
from lockstep.properties.running.profiles import TIMES_AS_LONG
from lockstep.properties.searching.others import Others
from lockstep.properties.searching.seldom import Seldom

PORTION, MOST = 5, 10_000  # the least and the most examples of a law on sim
SECONDS = {False: 0.02, True: 0.05}  # assumed for an example until some have run: on sim, and on real processes
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(words: str) -> float:
    """The seconds of a text like "90", "60s", "5m" or "1h". Raises Unusable for any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", words.strip())
    if match is None or not float(match[1]):
        raise Unusable(f"--budget {words}: write a time, such as 60s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


@dataclass(frozen=True)
class Wanted:
    """The programs to draw for a law: a ``share`` of the common level, but no more than it lacks to that level.

    ``seen``: the number of runs on which it was judged already. ``real``: on real processes, where a law needs a tenth
    of the programs. ``seconds``: the time of one program.
    """

    share: float
    real: bool = False
    seen: int = 0
    seconds: float = 1.0

    def time(self, level: float) -> float:
        """The seconds of the programs drawn for it, if each law is to be judged on ``level`` runs on sim."""
        level = level / TIMES_AS_LONG if self.real else level
        return self.seconds * max(0.0, min(level * self.share, level - self.seen))


def level(laws: Iterable[Wanted], seconds: float) -> float:
    """The number of runs on which each of the laws can be judged in so many seconds."""
    laws = list(laws)
    low, high = 0.0, 1.0
    while high < MOST and sum(each.time(high) for each in laws) < seconds:
        high *= 2
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(each.time(middle) for each in laws) < seconds else (low, middle)
    return low


@dataclass
class Pace:
    """The time of a run. ``seconds``: for all laws of this process. ``processes``: the number that share the laws."""

    seconds: float
    processes: int = 1
    _left: dict[tuple[str, str, bool], tuple[Law, Others]] = field(default_factory=dict)
    _ends: float | None = None
    _spent: dict[bool, tuple[int, float]] = field(default_factory=dict)

    def expect(self, held: Iterable[tuple[str, Law, bool, Others]]) -> None:
        """Announce the laws that all processes will check.

        Each item: the implementation's name, the law, true for real processes, and the laws that are checked together
        with it.
        """
        for name, law, real, others in held:
            others.seldom = others.seldom or Seldom()
            self._left[name, law.name, real] = law, others

    def until(self, name: str, law: Law, real: bool) -> float:
        """The time by `time.monotonic` at which a law that begins now must end."""
        now = time.monotonic()
        self._ends = self._ends or now + self.seconds
        left = max(0.0, self._ends - now)
        _, others = self._left.pop((name, law.name, real), (law, Others()))
        mine = self._wants(law, real, others)
        wants = [self._wants(each, there, others) for (_, _, there), (each, others) in self._left.items()]
        return now + min(left, mine.time(level([mine, *wants], left * self.processes)))

    def _wants(self, law: Law, real: bool, others: Others) -> Wanted:
        """The programs that a law still needs. Other processes are assumed to have judged it as often as this one."""
        return Wanted(law.share, real, others.shown[sentence(law)] * self.processes, self._seconds(real))

    def _seconds(self, real: bool) -> float:
        examples, seconds = self._spent.get(real, (0, 0.0))
        return seconds / examples if examples else SECONDS[real]

    def spent(self, real: bool, examples: int, seconds: float) -> None:
        """Note the time that a law took for so many passed examples."""
        before, took = self._spent.get(real, (0, 0.0))
        self._spent[real] = before + examples, took + seconds


def portion(real: bool) -> int:
    """The number of examples between two looks at the clock. A law gets so many however little time is left."""
    return max(1, PORTION // TIMES_AS_LONG) if real else PORTION
