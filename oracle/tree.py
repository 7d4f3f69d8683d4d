"""All-reduce on a binary tree, message by message: reduce to the root, then broadcast from it.

2 floor(log2 N) steps instead of the ring's 2 (N - 1), but whole tensors instead of chunks: better for small messages,
worse for large ones.
"""

from collections.abc import Sequence

from lockstep.oracle.collectives import Array, check_alike, check_counts, finish
from lockstep.oracle.ring import Message, Simulation, carry_out


def parent(rank: int) -> int:
    """floor((r - 1) / 2): ranks are numbered level by level from the root, 0. Children of r: 2 r + 1 and 2 r + 2."""
    if rank < 1:
        raise ValueError(f"rank {rank} has no parent: only ranks from 1 have one")
    return (rank - 1) // 2


def level(rank: int) -> int:
    """floor(log2(r + 1)): the number of messages between rank r and the root."""
    if rank < 0:
        raise ValueError(f"rank {rank} must be at least 0")
    return (rank + 1).bit_length() - 1


def reduce_schedule(elements: int, world_size: int) -> list[Message]:
    """The deepest level sends first; in step s each rank of level floor(log2 N) - s sends its subtree's result up."""
    check_counts(elements, world_size)
    deepest = level(world_size - 1)
    return [
        Message("reduce", step, rank, parent(rank), 0, elements)
        for step in range(deepest)
        for rank in range(1, world_size)
        if level(rank) == deepest - step
    ]


def broadcast_schedule(elements: int, world_size: int) -> list[Message]:
    """The root sends first; in step s each rank of level s + 1 receives the result from its parent."""
    return [
        Message("broadcast", level(rank) - 1, parent(rank), rank, 0, elements)
        for rank in sorted(range(1, world_size), key=level)
    ]


def tree_all_reduce(arrays: Sequence[Array], op: str = "sum") -> Simulation:
    """Every rank ends with the reduction over all ranks. Any length, any N.

    A parent combines (own op left subtree) op right subtree. N - 1 messages of D elements in each phase: the ranks
    together send 2 (N - 1) D elements, as in the ring, but a parent of two sends and receives three times D, and a
    leaf D. The average is taken by the root, between the two phases.
    """
    check_alike(arrays)
    ranks = len(arrays)
    held = [{0: array.copy()} for array in arrays]
    up, down = reduce_schedule(arrays[0].size, ranks), broadcast_schedule(arrays[0].size, ranks)
    carry_out(up, held, op)
    held[0][0] = finish(op, held[0][0], ranks)
    carry_out(down, held, None)
    return Simulation([mine[0].copy() for mine in held], up + down)
