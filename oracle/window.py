"""One optimizer step of a training loop: a window of micro-batches on each rank, with tokens that count.

A sample has so many tokens that count, perhaps none, and a loss and a gradient for each of them; of a padded or masked
token neither counts. All numbers are exact: integers go in, fractions come out. Means are taken by one of `POLICIES`,
with N ranks, k micro-batches on each, and over tokens t:

    tokens       sum of all g_t / number of all tokens, of the window and of all ranks
    rank         1/N times the sum over ranks of (sum of its g_t / number of its tokens)
    micro-batch  1/(N k) times the sum over micro-batches of (sum of its g_t / number of its tokens)

What has no tokens adds zero, and counts in N and k. Where nothing counts at all, loss and gradient are zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

POLICIES = ("tokens", "rank", "micro-batch")

Vector = tuple[Fraction, ...]
Tokens = Sequence[tuple[int, ...]]  # of each token, its numbers


@dataclass(frozen=True)
class Sample:
    """``losses``: of each token that counts; ``gradients``: of each, by element of all parameters end to end."""

    losses: tuple[int, ...]
    gradients: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.gradients):
            raise ValueError(f"{len(self.losses)} losses and {len(self.gradients)} gradients: give one of each a token")


MicroBatch = Sequence[Sample]
Window = Sequence[Sequence[MicroBatch]]  # by rank, the micro-batches of one optimizer step


def loss(window: Window, policy: str) -> Fraction:
    """The loss of the step: what every rank reports."""
    return _mean(window, policy, 1, lambda sample: [(each,) for each in sample.losses])[0]


def gradient(window: Window, policy: str, size: int) -> Vector:
    """The gradient of the step, of so many elements: what is clipped, once, and stepped."""
    return _mean(window, policy, size, lambda sample: sample.gradients)


def groups(window: Window, policy: str) -> list[list[Sample]]:
    """The samples over whose tokens a mean is taken, each group by itself; the mean over groups comes after that.

    Raises ValueError for a window without ranks, with ranks that have different numbers of micro-batches, or for an
    unknown policy.
    """
    counts = {len(rank) for rank in window}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"ranks with {sorted(counts)} micro-batches: every rank has as many, at least one")
    match policy:
        case "tokens":
            return [list(chain.from_iterable(chain.from_iterable(window)))]
        case "rank":
            return [list(chain.from_iterable(rank)) for rank in window]
        case "micro-batch":
            return [list(batch) for rank in window for batch in rank]
        case unknown:
            raise ValueError(f"policy {unknown!r}: there are {', '.join(POLICIES)}")


def _mean(window: Window, policy: str, size: int, values: Callable[["Sample"], Tokens]) -> Vector:
    """The mean over groups of the means over their tokens."""
    total = [Fraction(0)] * size
    divided = groups(window, policy)
    for group in divided:
        tokens = [token for sample in group for token in values(sample)]
        for place in range(size) if tokens else ():
            total[place] += Fraction(sum(token[place] for token in tokens), len(tokens) * len(divided))
    return tuple(total)
