"""The samples of a data set that each rank sees: the contract of torch.utils.data.DistributedSampler, without torch.

The shuffled order is the caller's, a permutation: no random generator is part of the contract.
Source: documentation of torch 2.13; the interleaving and the wrap-around measured against it.
"""

from collections.abc import Callable, Sequence


def samples_per_rank(length: int, world_size: int, drop_last: bool = False) -> int:
    """ceil(n / N), or floor(n / N) with drop_last: the same on every rank."""
    check_counts(length, world_size)
    return length // world_size if drop_last else -(-length // world_size)


def epoch_order(
    length: int, epoch: int, shuffle: bool, permutation: Callable[[int], Sequence[int]], seed: int = 0
) -> Sequence[int]:
    """0, 1, ..., n - 1; with shuffling, permutation(seed + epoch), the same on every rank.

    So `set_epoch` changes the order on all ranks alike, and only with shuffling on; forgetting it repeats epoch 0.
    """
    return permutation(seed + epoch) if shuffle else range(length)


def rank_indices(order: Sequence[int], world_size: int, rank: int, drop_last: bool = False) -> tuple[int, ...]:
    """padded[r], padded[r + N], padded[r + 2 N], ...

    padded: the order, repeated from its start up to N ceil(n / N) samples; with drop_last, cut to N floor(n / N).
    Without drop_last the ranks cover the data set and the first samples of the order may occur on two ranks (or more,
    for n < N); with it, no sample occurs twice and the last n mod N of the order are seen by nobody.
    """
    check_counts(len(order), world_size)
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"an order of {len(order)} samples must hold each of 0..{len(order) - 1} once")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} in a world of {world_size}: give 0..{world_size - 1}")
    total = world_size * samples_per_rank(len(order), world_size, drop_last)
    return tuple(order[place % len(order)] for place in range(rank, total, world_size))


def check_counts(length: int, world_size: int) -> None:
    """ValueError for fewer than 0 samples or fewer than 1 rank."""
    if length < 0 or world_size < 1:
        raise ValueError(f"{length} samples on {world_size} ranks: give at least 0 samples and 1 rank")
