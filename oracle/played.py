"""Programs of ranks, played against a clock: the times at which ranks compute, wait, and send collectives.

A cost model gives the seconds. `oracle.overlap` has the formula of one rule: buckets go out as soon as they are full.
This module takes any order that was observed in an implementation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Key = tuple[str, int]
"""A collective: its group, and its place in the group's sequence."""


@dataclass(frozen=True)
class Compute:
    """The rank computes for so many seconds. ``kind``: "forward", "backward" or "optimizer"."""

    kind: Literal["forward", "backward", "optimizer"]
    name: str
    seconds: Fraction


@dataclass(frozen=True)
class Launch:
    """The rank launches its part in a collective and goes on."""

    collective: Key


@dataclass(frozen=True)
class Wait:
    """The rank waits until a collective is done."""

    collective: Key


Act = Compute | Launch | Wait


@dataclass(frozen=True)
class Span:
    """An act of a rank, from ``start`` to ``end``, in seconds. ``kind``: that of a `Compute`, or "wait"."""

    kind: str
    name: str
    start: Fraction
    end: Fraction
    collective: Key | None = None


@dataclass(frozen=True)
class Travel:
    """A collective under way: launched by each member, in seconds, and carried out from ``start`` to ``end``."""

    collective: Key
    launched: Mapping[int, Fraction]
    start: Fraction
    end: Fraction


@dataclass(frozen=True)
class Played:
    """The acts of each rank, by rank, and the collectives in the order in which they start."""

    ranks: tuple[tuple[Span, ...], ...]
    travels: tuple[Travel, ...]

    @property
    def step(self) -> Fraction:
        """Seconds until the last rank is done."""
        ends = [span.end for spans in self.ranks for span in spans] + [travel.end for travel in self.travels]
        return max(ends, default=Fraction(0))

    @property
    def computation(self) -> Fraction:
        """Seconds for which the rank that computes longest computes: the step of one rank alone."""
        by_rank = [sum((s.end - s.start for s in spans if s.kind != "wait"), Fraction(0)) for spans in self.ranks]
        return max(by_rank, default=Fraction(0))

    @property
    def communication(self) -> Fraction:
        """Seconds for which at least one collective is under way."""
        total = until = Fraction(0)
        for travel in sorted(self.travels, key=lambda each: each.start):
            total += max(Fraction(0), travel.end - max(until, travel.start))
            until = max(until, travel.end)
        return total

    @property
    def exposed(self) -> Fraction:
        """Communication that nothing hides: the step minus the step without communication."""
        return self.step - self.computation

    @property
    def overlap(self) -> Fraction:
        """Share of communication that computing hides; 0 where there is none, or where ranks wait even longer."""
        return max(Fraction(0), 1 - self.exposed / self.communication) if self.communication else Fraction(0)

    @property
    def compute_share(self) -> Fraction:
        """Computing / step; 1 for a step that takes no time."""
        return self.computation / self.step if self.step else Fraction(1)


def play(
    ranks: Sequence[Sequence[Act]], members: Mapping[Key, Sequence[int]], seconds: Mapping[Key, Fraction]
) -> Played:
    """Play the acts of each rank. ``members``: the ranks that take part in a collective; ``seconds``: what it takes.

        start of a collective = the last of {launch by each member, end of the one before it in its group}

    One channel per group, as NCCL has it, and communication does not slow computing down. ValueError where ranks wait
    for a collective that some member never launches.
    """
    clocks, places = [Fraction(0)] * len(ranks), [0] * len(ranks)
    spans: list[list[Span]] = [[] for _ in ranks]
    launched: dict[Key, dict[int, Fraction]] = {}
    travels: dict[Key, Travel] = {}

    def arrive(key: Key) -> None:
        """The collective, and those behind it in its group, as far as all members are there."""
        group, place = key
        before = travels.get((group, place - 1))
        there = launched.get(key, {})
        if len(there) == len(members.get(key, ())) > 0 and key not in travels and (before or place == 0):
            start = max(*there.values(), before.end if before else Fraction(0))
            travels[key] = Travel(key, there, start, start + seconds[key])
            arrive((group, place + 1))

    def act(rank: int, what: Act) -> bool:
        """Carry out an act; False if the rank cannot go on yet."""
        now = clocks[rank]
        match what:
            case Compute(kind, name, length):
                spans[rank].append(Span(kind, name, now, now + length))
                clocks[rank] = now + length
            case Launch(key):
                launched.setdefault(key, {})[rank] = now
                arrive(key)
            case Wait(key):
                if key not in travels:
                    return False
                if (end := travels[key].end) > now:
                    spans[rank].append(Span("wait", "", now, end, key))
                    clocks[rank] = end
        return True

    moved = True
    while moved:
        moved = False
        for rank, acts in enumerate(ranks):
            while places[rank] < len(acts) and act(rank, acts[places[rank]]):
                places[rank] += 1
                moved = True
    stuck = [rank for rank, acts in enumerate(ranks) if places[rank] < len(acts)]
    if stuck:
        raise ValueError(f"ranks {stuck} wait for a collective that some member never launches")
    return Played(tuple(map(tuple, spans)), tuple(sorted(travels.values(), key=lambda each: each.start)))
