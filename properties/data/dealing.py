"""The draw for a sampler: the numbers of ranks and samples, batches, order, and interruptions."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep.properties.exercise import Exercise
from lockstep.worlds.contract import Outcome

MOST_SHOWN = 16  # items of a rank's epoch that a report shows


@dataclass(frozen=True, repr=False)
class Dealing(Exercise):
    """A use of a sampler.

    - ``batch``: samples in a batch; 0: single samples are given.
    - ``epoch``: the first epoch that is observed, or the one that is interrupted.
    - ``stops``: the numbers of items before each interruption, counted from the last one; -1: at the end of the epoch.
    - ``onto``: the number of ranks after the interruptions; 0: the same number.
    """

    world_size: int
    length: int
    batch: int = 0
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    epoch: int = 0
    stops: tuple[int, ...] = ()
    onto: int = 0

    called: ClassVar[str] = "dealing"

    @property
    def unit(self) -> int:
        """The number of samples dealt at a time."""
        return self.batch or 1

    def words(self) -> str:
        """The dealing in words: the number of samples, and the interruptions."""
        told = [f"{self.length} {'sample' if self.length == 1 else 'samples'}"]
        told += [f"in batches of {self.batch}"] if self.batch else []
        told += [f"shuffled with seed {self.seed}"] if self.shuffle else []
        told += ["drop_last"] if self.drop_last else []
        told += [f"from epoch {self.epoch} on"] if self.epoch and not self.stops else []
        told += [f"saved and loaded {_when(stop)} of epoch {self.epoch}" for stop in self.stops[:1]]
        told += [f"and again {_when(stop)} after that" for stop in self.stops[1:]]
        told += [f"on {ranks(self.onto)}"] if self.onto else []
        return f"{ranks(self.world_size)}: {', '.join(told)}"

    def shown(self, outcome: Outcome) -> list[str]:
        """The samples that each rank got, part by part."""
        lines = []
        for rank, report in enumerate(outcome):
            seen: Any = report.result
            for what, items in seen["got"] if seen is not None else ():
                more = " ..." if len(items) > MOST_SHOWN else ""
                got = " ".join(
                    str(item[0] if len(item) == 1 and not self.batch else item) for item in items[:MOST_SHOWN]
                )
                lines.append(f"rank {rank}, {what}: {got or 'nothing'}{more}")
        return ["What each rank got:", *(f"    {line}" for line in lines)] if lines else []


def ranks(number: int) -> str:
    """A number of ranks, in words."""
    return f"{number} {'rank' if number == 1 else 'ranks'}"


def _when(stop: int) -> str:
    if stop < 0:
        return "at the end"
    return "at the beginning" if stop == 0 else f"after {stop} {'item' if stop == 1 else 'items'}"
