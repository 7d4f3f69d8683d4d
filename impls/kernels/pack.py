"""Many tensors into one contiguous bucket, and back, one launch for the whole list.

Elements are in row-major order whatever a tensor's strides are, tensor after tensor, without padding: the order is the
same on ranks whose tensors are laid out differently.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.launch import LARGER, Launcher, address, factor
from lockstep.impls.kernels.table import BYTES, Table, kind_of
from lockstep.impls.kernels.words import (
    ITEMS,
    ends,
    from_float32,
    is_strided,
    lead_of,
    piece,
    places,
    pointer,
    to_float32,
    transform,
)

Tensors = Sequence[torch.Tensor] | Table
# Ways of `_rewrite`: tensors into the bucket, the bucket into tensors, and tensors into themselves.
PACK, UNPACK, IN_PLACE = (tl.constexpr(way) for way in range(3))
TILE = 1024 * LARGER  # elements at a time where there are no vectors: few, so that few registers are taken


def pack(tensors: Tensors, bucket: torch.Tensor, scale: float = 1.0, coefficient: torch.Tensor | None = None) -> None:
    """bucket <- the elements of all tensors, one after the other; each times ``scale`` and ``coefficient``.

    bucket: one-dimensional, contiguous, as long as all tensors together. Where all dtypes are alike and nothing is
    scaled, bits are moved and any dtype will do; else float32, bfloat16 and float16 may be mixed, arithmetic is float32
    and the result is rounded once. ``coefficient``: one float32 on the device.
    """
    transfer(tensors, bucket, True, 1.0, scale, coefficient)


def unpack(
    bucket: torch.Tensor,
    tensors: Tensors,
    divisor: float = 1.0,
    scale: float = 1.0,
    coefficient: torch.Tensor | None = None,
) -> None:
    """Each tensor <- its elements of the bucket, over ``divisor``, times ``scale`` and ``coefficient``; see `pack`.

    With the number of ranks as divisor: unpack, average and cast in one pass.
    """
    transfer(tensors, bucket, False, divisor, scale, coefficient)


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous copy in another of float32, bfloat16 and float16: to nearest even, NaN and infinities kept."""
    out = torch.empty(source.shape, dtype=dtype, device=source.device)
    pack([source], out.view(-1))
    return out


def transfer(
    tensors: Tensors,
    bucket: torch.Tensor,
    packs: bool,
    divisor: float,
    scale: float,
    coefficient: torch.Tensor | None,
    index: tl.dtype = tl.int64,
) -> None:
    """`pack` or `unpack`. ``index``: of offsets, see `Table`. ValueError for what does not fit."""
    changes = divisor != 1 or scale != 1 or coefficient is not None
    if isinstance(tensors, Table):
        table = tensors
    else:
        table = Table.of(tensors, not changes and all(tensor.dtype == bucket.dtype for tensor in tensors), index)
    if changes and table.raw:
        raise ValueError("this table is for moving only: make one with raw=False to scale or average")
    check_bucket(bucket, table)
    check_coefficient(coefficient, bucket)
    if not packs:
        refuse_overlaps(table)
    kind = kind_of(bucket.dtype, table.raw)
    rewrite(table, bucket.data_ptr(), kind, PACK if packs else UNPACK, divisor, scale, coefficient)


def rewrite(
    table: Table,
    bucket: int,
    kind: int,
    way: tl.constexpr,
    divisor: float,
    scale: float,
    coefficient: torch.Tensor | None,
) -> None:
    """All elements, from a table's tensors to the bucket at that address, of that kind, or back, or in place."""
    if table.blocks == 0:
        return
    divisor, divide = factor(divisor)
    _REWRITE(
        table.blocks,
        (
            table.pieces.data_ptr(),
            table.layout.data_ptr(),
            table.blocks,
            bucket,
            divisor,
            float(scale),
            address(coefficient),
        ),
        MASK=table.mask,
        BUCKET=kind,
        WAY=way.value,
        DIVIDE=divide,
        CLIP=coefficient is not None,
        STRIDED=table.strided,
        BYTES=BYTES,
        TILE=TILE,
        INDEX=table.index,
    )


def check_bucket(bucket: torch.Tensor, table: Table) -> None:
    """ValueError for a bucket that the tensors do not fill, that has gaps, or of another kind."""
    if bucket.dim() != 1 or not bucket.is_contiguous() or bucket.numel() != table.elements:
        got = f"shape {tuple(bucket.shape)} and strides {bucket.stride()}"
        raise ValueError(f"the bucket has {got}: it must be contiguous, of {table.elements} elements")
    if table.tensors and bucket.device != table.tensors[0].device:
        raise ValueError(f"the bucket is on {bucket.device}, the tensors on {table.tensors[0].device}")
    if table.raw and table.tensors and bucket.dtype != table.tensors[0].dtype:
        raise ValueError(f"the bucket is {bucket.dtype}, the table moves {table.tensors[0].dtype}: use raw=False")


def check_coefficient(coefficient: torch.Tensor | None, beside: torch.Tensor) -> None:
    """ValueError for a coefficient that is not one float32 beside the data."""
    if coefficient is not None and (
        coefficient.dtype != torch.float32 or coefficient.numel() != 1 or coefficient.device != beside.device
    ):
        got = f"{coefficient.numel()} x {coefficient.dtype} on {coefficient.device}"
        raise ValueError(f"the coefficient is {got}: it must be one float32 on {beside.device}")


def refuse_overlaps(table: Table) -> None:
    """ValueError for a destination in which two elements share memory."""
    if table.overlapping:
        raise ValueError(table.overlapping)


@triton.jit(do_not_specialize=["pieces", "layout", "blocks", "bucket", "coefficient"])
def _rewrite(
    pieces: tl.int64,
    layout: tl.int64,
    blocks: tl.int64,
    bucket: tl.int64,
    divisor,
    scale,
    coefficient: tl.int64,
    MASK: tl.constexpr,
    BUCKET: tl.constexpr,
    WAY: tl.constexpr,
    DIVIDE: tl.constexpr,
    CLIP: tl.constexpr,
    STRIDED: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    INDEX: tl.constexpr,
):
    """One piece. In place from the last to the first: what a norm has just read is still in the cache."""
    block = tl.program_id(0).to(tl.int64)
    if WAY == IN_PLACE:
        block = blocks - 1 - block
    factor = scale
    if CLIP:
        factor = tl.load(pointer(coefficient, 0))
    address, offset, count, kind = piece(pieces, blocks, block)
    for KIND in tl.static_range(7):
        if MASK & (1 << KIND):
            # Only where kinds are mixed is there something to decide on the device.
            if (MASK == (1 << KIND)) | (kind == KIND):
                FLAT: tl.constexpr = KIND if WAY == IN_PLACE else BUCKET
                flat = bucket + offset * ((ITEMS >> (4 * FLAT)) & 15)
                dense = True
                if STRIDED:
                    dense = not is_strided(pieces, blocks, block)
                if dense:
                    if WAY == IN_PLACE:
                        flat = address
                    _dense(address, flat, count, divisor, scale, factor, KIND, FLAT, WAY, DIVIDE, CLIP, BYTES, TILE)
                elif STRIDED:
                    begin = count * 0
                    while begin < count:
                        offsets = begin.to(INDEX) + tl.arange(0, TILE).to(INDEX)
                        inside = offsets < count
                        tensor = pointer(address, KIND) + places(pieces, blocks, block, layout, offsets)
                        other = tensor if WAY == IN_PLACE else pointer(flat, FLAT) + offsets
                        _copy(tensor, other, inside, divisor, scale, factor, KIND, FLAT, WAY, DIVIDE, CLIP)
                        begin += TILE


@triton.jit
def _dense(
    address,
    flat,
    count,
    divisor,
    scale,
    factor,
    KIND: tl.constexpr,
    FLAT: tl.constexpr,
    WAY: tl.constexpr,
    DIVIDE: tl.constexpr,
    CLIP: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Vectors of 16 bytes on both sides where their addresses allow it, and what is before and behind them."""
    HERE: tl.constexpr = (ITEMS >> (4 * KIND)) & 15
    THERE: tl.constexpr = (ITEMS >> (4 * FLAT)) & 15
    VECTOR: tl.constexpr = 16 // (HERE if HERE < THERE else THERE)  # elements
    lead = lead_of(address, count, HERE)
    here, there = address + lead * HERE, flat + lead * THERE
    aligned = True
    if WAY != IN_PLACE:
        aligned = there % 16 == 0
    # Offsets are made in each branch: shared, they would go through shared memory from one layout to another.
    if aligned:
        body = (count - lead) // VECTOR * VECTOR
        if body > 0:
            if KIND >= 3:  # bits are moved as words of 32
                words = body // VECTOR * 4
                _vectors(here, there, words, divisor, scale, factor, 5, 5, WAY, DIVIDE, CLIP, BYTES // 4)
            else:
                _vectors(here, there, body, divisor, scale, factor, KIND, FLAT, WAY, DIVIDE, CLIP, BYTES // HERE)
        if body < count:
            index, inside = ends(tl.arange(0, 32), lead, body, count)
            tensor, other = pointer(address, KIND) + index, pointer(flat, FLAT) + index
            _copy(tensor, other, inside, divisor, scale, factor, KIND, FLAT, WAY, DIVIDE, CLIP)
    else:
        begin = count * 0
        while begin < count:
            offsets = begin + tl.arange(0, TILE)
            tensor, other = pointer(address, KIND) + offsets, pointer(flat, FLAT) + offsets
            _copy(tensor, other, offsets < count, divisor, scale, factor, KIND, FLAT, WAY, DIVIDE, CLIP)
            begin += TILE


@triton.jit
def _vectors(
    here,
    there,
    count,
    divisor,
    scale,
    factor,
    KIND: tl.constexpr,
    FLAT: tl.constexpr,
    WAY: tl.constexpr,
    DIVIDE: tl.constexpr,
    CLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole vectors at addresses that are multiples of 16.

    What the compiler cannot know of an address is told to it: of the pointers to the elements, for Triton before 3.9
    forgets what it is told of an integer that became a pointer. Of what is loaded to be stored wider it is told less:
    so a thread loads what it stores, and elements do not go through shared memory from one thread to another.
    """
    HERE: tl.constexpr = (ITEMS >> (4 * KIND)) & 15
    THERE: tl.constexpr = (ITEMS >> (4 * FLAT)) & 15
    offsets = tl.arange(0, BLOCK)
    tensor = tl.multiple_of(pointer(here, KIND) + offsets, 8 if WAY == PACK and HERE < THERE else 16)
    other = tl.multiple_of(pointer(there, FLAT) + offsets, 8 if WAY == UNPACK and THERE < HERE else 16)
    _copy(tensor, other, offsets < count, divisor, scale, factor, KIND, FLAT, WAY, DIVIDE, CLIP)


@triton.jit
def _copy(
    tensor,
    flat,
    inside,
    divisor,
    scale,
    factor,
    KIND: tl.constexpr,
    FLAT: tl.constexpr,
    WAY: tl.constexpr,
    DIVIDE: tl.constexpr,
    CLIP: tl.constexpr,
):
    if WAY == UNPACK:
        x = tl.load(flat, inside)
    else:
        x = tl.load(tensor, inside)
    if KIND < 3:  # numbers, not words
        x = to_float32(x, FLAT if WAY == UNPACK else KIND)
        x = transform(x, divisor, scale, factor, DIVIDE, CLIP)
        x = from_float32(x, FLAT if WAY == PACK else KIND)
    if WAY == PACK:
        tl.store(flat, x, inside)
    else:
        tl.store(tensor, x, inside)


_REWRITE = Launcher(_rewrite)
