"""The rules of dealing samples to ranks, in any order and to any rank.

Samples are numbers. A share is the list of samples of one rank, in its order. A unit is the number of samples dealt at
a time: 1, or the size of a batch.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lockstep.oracle.sampler import check_counts

# The remainder, which the ranks cannot share evenly: some samples are dealt twice, so that all ranks get equally many;
# some ranks get fewer; or the samples are left out.
REMAINDERS = ("repeat", "uneven", "drop")


@dataclass(frozen=True)
class Tally:
    """The counts of dealt samples.

    missing     samples that no rank got
    repeated    samples dealt more than once, in any share
    foreign     samples that were not to be dealt at all, once each
    """

    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    foreign: tuple[int, ...]


def tally(shares: Sequence[Sequence[int]], samples: Collection[int]) -> Tally:
    """Count the dealt samples against the samples that were to be dealt."""
    times = Counter(sample for share in shares for sample in share)
    return Tally(
        tuple(sorted(set(samples) - set(times))),
        tuple(sorted(sample for sample, count in times.items() if count > 1)),
        tuple(sorted(set(times) - set(samples))),
    )


def totals(samples: int, world_size: int, unit: int, remainder: str) -> range:
    """The numbers of samples that may be dealt in all, of n samples on N ranks, u at a time.

    repeat: n <= total < n + N u, the least that lets ranks get equally many units; uneven: n; drop: n - N u < total <=
    n. With a unit of 1, and shares that are equal, N ceil(n / N), n and N floor(n / N).
    """
    check_counts(samples, world_size)
    if unit < 1:
        raise ValueError(f"a unit of {unit} samples: give at least 1")
    match remainder:
        case "repeat":
            return range(samples, samples + world_size * unit)
        case "uneven":
            return range(samples, samples + 1)
        case "drop":
            return range(max(0, samples - world_size * unit + 1), samples + 1)
        case unknown:
            raise ValueError(f"remainder {unknown!r}: there are {', '.join(REMAINDERS)}")


def most_apart(unit: int, remainder: str) -> int:
    """The largest difference between the shares of two ranks, in samples: a unit if they may be uneven, else 0."""
    return unit if remainder == "uneven" else 0


def least_units(samples: int, world_size: int, unit: int) -> int:
    """The least number of units for every rank, by `totals` and `most_apart`: floor(n / (N u)).

    repeat: shares are at least n / N. drop: shares are more than n / N - u, so they have at least floor(n / (N u)),
    whole ones or parts. uneven: shares are more than n / N - u likewise.
    """
    check_counts(samples, world_size)
    return samples // (world_size * unit)
