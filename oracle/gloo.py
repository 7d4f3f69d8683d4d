"""gloo's CPU collectives, bit for bit: the ring that torch's gloo backend uses for every reduction.

The rules are those of ``ring`` in gloo/allreduce.cc; torch never asks for gloo's other algorithms. They were measured
against torch 2.13 on world sizes 1 to 16, in the four formats (`properties.tests.test_oracle_against_gloo` repeats
it). Data is in the dtype on the wire throughout: **every hop rounds to it**, float16 and bfloat16 included.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.oracle.collectives import (
    Array,
    check_alike,
    check_counts,
    check_root,
    check_square,
    combine,
    even_sizes,
    finish,
    split,
)
from lockstep.oracle.ring import Message

SEGMENT_BYTES = 2**20


def chunk_bounds(elements: int, element_bytes: int, world_size: int) -> list[tuple[int, int]]:
    """Chunk c is the elements lo <= i < hi with lo = min(c C, n), hi = min((c + 1) C, n), where

        k = max(2, ceil(ceil(n b / 2**20) / N))     segments per rank; b: bytes per element
        C = k ceil(n / (k N))                       elements per chunk

    So chunks are even in length, but for the last ones, which may be short or empty: 13 elements on 4 ranks make
    4, 4, 4, 1. k is 2 up to 2 N MiB. b must divide 2**20.
    """
    check_counts(elements, world_size)
    if element_bytes < 1 or SEGMENT_BYTES % element_bytes:
        raise ValueError(f"{element_bytes} bytes per element: give a power of two up to {SEGMENT_BYTES}")
    segments = max(2, _ceil(_ceil(elements * element_bytes, SEGMENT_BYTES), world_size))
    length = segments * _ceil(elements, segments * world_size)
    return [(min(chunk * length, elements), min((chunk + 1) * length, elements)) for chunk in range(world_size)]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def accumulation_order(chunk: int, world_size: int) -> tuple[int, ...]:
    """c - 1, c - 2, ..., c - N, modulo N: chunk c starts at rank c - 1, walks *down*, ends at rank c, complete."""
    if not 0 <= chunk < world_size:
        raise ValueError(f"chunk {chunk} of {world_size} ranks: it must be in 0..{world_size - 1}")
    return tuple((chunk - hop) % world_size for hop in range(1, world_size + 1))


def all_reduce_schedule(elements: int, element_bytes: int, world_size: int) -> list[Message]:
    """The ring, walked downwards: rank r only ever sends to r - 1, modulo N, N - 1 steps in each phase.

        reduce-scatter, step s:   rank r sends chunk (r + 1 + s) mod N, and r - 1 adds it to its own
        all-gather, step s:       rank r sends chunk (r + s) mod N, which replaces what r - 1 had of it

    So after the first phase rank r owns chunk r. A message is a chunk of `chunk_bounds`; gloo sends it as k segments.
    """
    sizes = [hi - lo for lo, hi in chunk_bounds(elements, element_bytes, world_size)]
    return [
        Message(phase, step, rank, (rank - 1) % world_size, chunk, sizes[chunk])
        for phase, ahead in (("reduce-scatter", 1), ("all-gather", 0))
        for step in range(world_size - 1)
        for rank in range(world_size)
        for chunk in [(rank + ahead + step) % world_size]
    ]


def hop(op: str, local: Array, arriving: Array) -> Array:
    """Combine a rank's own elements with those that arrive.

    Sum and product: RN(local op arriving). Max: local < arriving ? arriving : local; min: arriving < local ? arriving
    : local. So of two zeros the local one stays, and a NaN stays where it is local and vanishes where it arrives:
    gloo's min and max do *not* propagate NaN. (C++'s std::max(local, arriving); measured.)
    """
    with np.errstate(invalid="ignore"):
        if op == "max":
            return np.where(local < arriving, arriving, local)
        if op == "min":
            return np.where(arriving < local, arriving, local)
    return combine(op, local, arriving)


def all_reduce(arrays: Sequence[Array], op: str = "sum") -> Array:
    """For each chunk: acc = x[c - 1]; then acc = x[c - j] op acc for j = 2 .. N. Every rank gets these bits.

    The average is the sum and then one true division by N (`oracle.collectives.finish`). With several NaNs, which
    payload survives is not predicted.
    """
    check_alike(arrays)
    world_size = len(arrays)
    flat = [array.reshape(-1) for array in arrays]
    result = flat[0].copy()
    for chunk, (lo, hi) in enumerate(chunk_bounds(result.size, result.itemsize, world_size)):
        first, *others = accumulation_order(chunk, world_size)
        total = flat[first][lo:hi]
        for rank in others:
            total = hop(op, flat[rank][lo:hi], total)
        result[lo:hi] = total
    return finish(op, result, world_size).reshape(arrays[0].shape)


def reduce(arrays: Sequence[Array], root: int, op: str = "sum") -> Array:
    """The result on the root: the bits of the all-reduce. Other ranks hold undefined values (they change)."""
    check_root(root, len(arrays))
    return all_reduce(arrays, op)


def reduce_scatter_tensor(arrays: Sequence[Array], op: str = "sum") -> list[Array]:
    """Tensor form: rank r gets the r-th of N equal slices, along the first dimension, of the all-reduce of the whole.

    So reduce-scatter and then all-gather give the bits of the all-reduce.
    """
    result = all_reduce(arrays, op)
    return split(result, even_sizes(result, len(arrays)))


def reduce_scatter(lists: Sequence[Sequence[Array]], op: str = "sum") -> list[Array]:
    """List form: rank r gets the all-reduce of piece r alone, cut on its own; ``lists[s][r]`` is rank s's.

    So from 3 ranks on its bits differ from the tensor form's. Pieces may have different sizes.
    """
    check_square(lists)
    return [all_reduce([pieces[rank] for pieces in lists], op) for rank in range(len(lists))]


def all_reduce_coalesced(lists: Sequence[Sequence[Array]], op: str = "sum") -> list[Array]:
    """One all-reduce of all tensors end to end, not one for each: ``lists[r][t]`` is tensor t of rank r.

    The result holds every tensor in its own shape, as every rank gets them.
    """
    for rank, tensors in enumerate(lists):
        shapes = [list(tensor.shape) for tensor in tensors]
        if shapes != [list(tensor.shape) for tensor in lists[0]] or len({tensor.dtype for tensor in tensors}) != 1:
            raise ValueError(
                f"rank {rank} gives tensors of shapes {shapes}: give rank 0's shapes, and one dtype for all"
            )
    flat = all_reduce([np.concatenate([tensor.reshape(-1) for tensor in tensors]) for tensors in lists], op)
    pieces = split(flat, [tensor.size for tensor in lists[0]])
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, lists[0], strict=True)]
