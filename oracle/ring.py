"""The ring algorithms, message by message: all-reduce, reduce-scatter and all-gather on nothing but send and receive.

The algorithm is Patarasuk & Yuan's ("Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
2009). Rank r only ever sends to r + 1, modulo N. Real backends cut chunks elsewhere and may walk the other way
(`oracle.gloo`): the schedule is the same. `oracle.schedules` prints it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from lockstep.oracle.collectives import Array, check_alike, check_counts, combine, finish


@dataclass(frozen=True)
class Message:
    """``elements`` elements, all of ``chunk``, go from ``sender`` to ``receiver``. Steps count from 0 in each phase.

    With ``piece``, only that piece of the chunk goes (`oracle.hierarchical`).
    """

    phase: str
    step: int
    sender: int
    receiver: int
    chunk: int
    elements: int
    piece: int | None = None

    @property
    def carries(self) -> str:
        """The chunk's number; of a piece, both numbers: ``1.0``."""
        return str(self.chunk) if self.piece is None else f"{self.chunk}.{self.piece}"


@dataclass(frozen=True)
class Simulation:
    """``results[r]``: what rank r holds at the end. ``messages``: all that was sent, in order of phase and step."""

    results: list[Array]
    messages: list[Message]


def chunk_sizes(elements: int, world_size: int) -> list[int]:
    """n elements in N chunks as even as can be: chunk c has floor(n / N), and one more if c < n mod N.

    There is a chunk for every rank whatever n is; with fewer elements than ranks the last ones are empty.
    """
    check_counts(elements, world_size)
    return [elements // world_size + (chunk < elements % world_size) for chunk in range(world_size)]


def reduce_scatter_schedule(sizes: Sequence[int], shift: int = 0) -> list[Message]:
    """N - 1 steps. In step s rank r sends chunk (r - s - shift) mod N, which r + 1 adds to its own.

    So rank r adds into chunk (r - s - 1 - shift) mod N, and at the end it owns chunk (r + 1 - shift) mod N, complete.
    Inside an all-reduce shift = 0. A reduce-scatter of its own must leave chunk r on rank r: shift = 1.
    """
    ranks = len(sizes)
    return [
        Message("reduce-scatter", step, rank, (rank + 1) % ranks, chunk, sizes[chunk])
        for step in range(ranks - 1)
        for rank in range(ranks)
        for chunk in [(rank - step - shift) % ranks]
    ]


def all_gather_schedule(sizes: Sequence[int], shift: int = 0) -> list[Message]:
    """N - 1 steps. In step s rank r sends chunk (r - s + 1 - shift) mod N, which replaces what r + 1 had of it.

    Rank r starts out owning chunk (r + 1 - shift) mod N and receives chunk (r - s - shift) mod N. Inside an all-reduce
    shift = 0, as in the phase before; an all-gather of its own starts with chunk r on rank r: shift = 1.
    """
    ranks = len(sizes)
    return [
        Message("all-gather", step, rank, (rank + 1) % ranks, chunk, sizes[chunk])
        for step in range(ranks - 1)
        for rank in range(ranks)
        for chunk in [(rank - step + 1 - shift) % ranks]
    ]


def carry_out(messages: Sequence[Message], held: list[dict[int, Array]], op: str | None) -> None:
    """Carries out one phase on ``held[rank][chunk]``: all messages of a step leave before any of them arrives.

    What arrives is combined into the receiver's own by ``op``, or replaces it where ``op`` is None.
    """
    for step in range(1 + max((message.step for message in messages), default=-1)):
        sent = [(message, held[message.sender][message.chunk]) for message in messages if message.step == step]
        for message, arriving in sent:
            mine = held[message.receiver]
            mine[message.chunk] = arriving if op is None else combine(op, mine[message.chunk], arriving)


def cut(array: Array, sizes: Sequence[int]) -> dict[int, Array]:
    """Chunks of the array's elements in row-major order; chunk c starts where chunk c - 1 ends."""
    if min(sizes, default=0) < 0 or sum(sizes) != array.size:
        raise ValueError(f"chunks of {list(sizes)} elements: sizes from 0 must add up to {array.size}")
    flat = array.reshape(-1)
    return {chunk: flat[lo:hi].copy() for chunk, (lo, hi) in enumerate(pairwise(accumulate(sizes, initial=0)))}


def ring_reduce_scatter(arrays: Sequence[Array], op: str = "sum", sizes: Sequence[int] | None = None) -> Simulation:
    """Rank r ends with chunk r, flat, reduced over all ranks. ``sizes``: elements per chunk, `chunk_sizes` without."""
    check_alike(arrays)
    ranks = len(arrays)
    sizes = chunk_sizes(arrays[0].size, ranks) if sizes is None else sizes
    if len(sizes) != ranks:
        raise ValueError(f"{len(sizes)} sizes for {ranks} ranks: give one for each rank")
    held = [cut(array, sizes) for array in arrays]
    messages = reduce_scatter_schedule(sizes, shift=1)
    carry_out(messages, held, op)
    return Simulation([finish(op, mine[rank], ranks) for rank, mine in enumerate(held)], messages)


def ring_all_gather(shards: Sequence[Array]) -> Simulation:
    """Every rank ends with all shards, end to end and flat; shard r is rank r's, and sizes may differ."""
    if len({shard.dtype for shard in shards}) != 1:
        raise ValueError(
            f"shards of dtypes {[str(shard.dtype) for shard in shards]}: give one of the same from each rank"
        )
    messages = all_gather_schedule([shard.size for shard in shards], shift=1)
    held = [{rank: shard.reshape(-1).copy()} for rank, shard in enumerate(shards)]
    carry_out(messages, held, None)
    return Simulation([np.concatenate([mine[chunk] for chunk in range(len(shards))]) for mine in held], messages)


def ring_all_reduce(arrays: Sequence[Array], op: str = "sum") -> Simulation:
    """Reduce-scatter, after which rank r owns chunk (r + 1) mod N, then all-gather. Any length, any N.

    Each rank sends 2 (N - 1) messages; 2 (N - 1) / N of its elements where N divides their number. The average is
    taken by the owner of a chunk, between the two phases.
    """
    check_alike(arrays)
    ranks = len(arrays)
    sizes = chunk_sizes(arrays[0].size, ranks)
    held = [cut(array, sizes) for array in arrays]
    adding, gathering = reduce_scatter_schedule(sizes), all_gather_schedule(sizes)
    carry_out(adding, held, op)
    for rank, mine in enumerate(held):
        owned = (rank + 1) % ranks
        mine[owned] = finish(op, mine[owned], ranks)
    carry_out(gathering, held, None)
    results = [np.concatenate([mine[chunk] for chunk in range(ranks)]).reshape(arrays[0].shape) for mine in held]
    return Simulation(results, adding + gathering)
