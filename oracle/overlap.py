"""The times at which buckets of gradients travel while backward still runs, and the part that a step waits for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

Number = int | Fraction


@dataclass(frozen=True)
class Sent:
    """One bucket: its bytes, when its last gradient exists, when it goes out and when it has arrived.

    Seconds since the start of backward.
    """

    bytes: int
    ready: Fraction
    start: Fraction
    end: Fraction


@dataclass(frozen=True)
class Timeline:
    """One step: seconds of forward, backward (computing only) and optimizer, and the buckets in order."""

    forward: Fraction
    backward: Fraction
    optimizer: Fraction
    buckets: tuple[Sent, ...]

    @property
    def computation(self) -> Fraction:
        """Forward + backward + optimizer: the step of one rank alone."""
        return self.forward + self.backward + self.optimizer

    @property
    def communication(self) -> Fraction:
        """Seconds for which a bucket is under way."""
        return sum((bucket.end - bucket.start for bucket in self.buckets), Fraction(0))

    @property
    def step(self) -> Fraction:
        """Forward + end of the last of {backward, communication} + optimizer."""
        last = max([self.backward] + [bucket.end for bucket in self.buckets])
        return self.forward + last + self.optimizer

    @property
    def exposed(self) -> Fraction:
        """Communication that nothing hides: the step minus the step without communication."""
        return self.step - self.computation

    @property
    def overlap(self) -> Fraction:
        """Share of communication that backward hides; 0 where there is none."""
        return 1 - self.exposed / self.communication if self.communication else Fraction(0)

    @property
    def efficiency(self) -> Fraction:
        """Scaling efficiency at a fixed micro-batch: (N / step) / (N / computation) = computation / step."""
        return self.computation / self.step


def bucket_ends(sizes: Sequence[int], cap: int) -> list[int]:
    """Gradients in the order in which they travel; a bucket closes as soon as it holds ``cap`` bytes or more.

    Returns, per bucket, how many gradients have gone into it and those before it. So a bucket may be larger than the
    cap, by less than its last gradient; a cap of 0 gives each gradient a bucket of its own.
    Source: measured against torch DDP's assignment (torch 2.13). Others close a bucket *before* it would overflow.
    """
    if cap < 0 or any(size < 0 for size in sizes):
        raise ValueError(f"cap {cap} and sizes {list(sizes)} are bytes: give 0 or more")
    ends, held = [], 0
    for index, size in enumerate(sizes):
        held += size
        if held >= cap or index == len(sizes) - 1:
            ends.append(index + 1)
            held = 0
    return ends


def all_reduce_calls(sizes: Sequence[int], synchronizations: int, cap: int = 0) -> int:
    """One call per bucket (cap 0: per gradient) at each of the step's synchronizations."""
    if synchronizations < 0:
        raise ValueError(f"synchronizations {synchronizations}: give 0 or more")
    return synchronizations * len(bucket_ends(sizes, cap))


def timeline(
    forward: Number,
    backward: Sequence[Number],
    optimizer: Number,
    sizes: Sequence[int],
    cap: int,
    time: Callable[[int], Number],
    overlapped: bool = True,
) -> Timeline:
    """backward[i] seconds produce gradient i, of sizes[i] bytes; ``time`` gives the seconds of a bucket's collective.

    ready: when the bucket's last gradient exists (without overlap: when backward ends)
    start = max(ready, end of the bucket before);  end = start + time(bytes)

    A hook that blocks backward costs the same as no overlap. Source: Li et al., "PyTorch Distributed", VLDB 2020,
    section 3.2.3, as a model: one channel, and communication does not slow computing down.
    """
    if len(backward) != len(sizes):
        raise ValueError(f"{len(backward)} backward times for {len(sizes)} gradients: give one for each")
    if min([forward, optimizer, *backward]) < 0:
        raise ValueError(f"forward {forward}, optimizer {optimizer} or a backward time is negative: give 0 or more")
    whole = sum(map(Fraction, backward), Fraction(0))
    buckets: list[Sent] = []
    begin, free = 0, Fraction(0)
    for stop in bucket_ends(sizes, cap):
        size = sum(sizes[begin:stop])
        ready = sum(map(Fraction, backward[:stop]), Fraction(0)) if overlapped else whole
        start = max(ready, free)
        free = start + time(size)
        buckets.append(Sent(size, ready, start, free))
        begin = stop
    return Timeline(Fraction(forward), whole, Fraction(optimizer), tuple(buckets))


def best_bucket_size(caps: Sequence[int], step: Callable[[int], Number]) -> int:
    """The cap with the shortest step; of equals the smallest."""
    if not caps:
        raise ValueError("no bucket sizes to choose from: give at least one")
    return min(sorted(caps), key=step)
