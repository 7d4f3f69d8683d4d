"""The acts of ranks, as data to draw: a lane per rank, and the collectives that travel between them.

All times are milliseconds since the beginning of what is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = {
    "forward": "forward",
    "backward": "backward",
    "finish": "finish the synchronization",
    "optimizer": "optimizer step",
    "wait": "waits for a collective",
}


@dataclass(frozen=True)
class Doing:
    """An act of a rank, from ``start`` to ``end``. ``kind``: one of ``KINDS``; ``name``: such as that of a gradient."""

    kind: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    """One rank. ``held``: (time, bytes that the implementation holds, gradients included), where that was counted."""

    rank: int
    doings: tuple[Doing, ...]
    held: tuple[tuple[float, int], ...] = ()

    @property
    def waits(self) -> float:
        """Milliseconds of waiting."""
        return sum(each.end - each.start for each in self.doings if each.kind == "wait")


@dataclass(frozen=True)
class Transfer:
    """A collective under way from ``start`` to ``end``, numbered from 1.

    ``bytes``: what each member puts in. ``launched``: by member, when. ``contents``: by member, the parameters whose
    gradients it puts in, empty where that is not known. ``clash``: whether different parameters meet in it.
    """

    number: int
    operation: str
    bytes: int
    launched: Mapping[int, float]
    start: float
    end: float
    contents: Mapping[int, str] = field(default_factory=dict)
    clash: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return tuple(sorted(self.launched))

    def carries(self) -> str:
        """The parameters in it, in words; by rank where ranks differ; empty where that is not known."""
        if len(set(self.contents.values())) <= 1:
            return next(iter(self.contents.values()), "")
        return "; ".join(f"rank {rank}: {names}" for rank, names in sorted(self.contents.items()))


@dataclass(frozen=True)
class Lanes:
    """A picture of a run. ``clock``: how its times came about, in sentences. ``model``: the model and its options."""

    title: str
    clock: str
    lanes: tuple[Lane, ...]
    transfers: tuple[Transfer, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    model: str = ""

    @property
    def end(self) -> float:
        """The time at which the last is done."""
        ends = [each.end for lane in self.lanes for each in lane.doings] + [each.end for each in self.transfers]
        return max(ends, default=0.0)


def size(count: float) -> str:
    """Bytes in words: 512 B, 16.2 KiB, 3.1 MiB, 130 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def quantity(count: int) -> str:
    """A count in words, to four digits: 950, 12.5 K, 124.4 M, 7.5 B."""
    for power, unit in ((9, "B"), (6, "M"), (3, "K")):
        if count >= 10**power:
            return f"{count / 10**power:.4g} {unit}"
    return str(count)
