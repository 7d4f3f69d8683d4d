"""Many tensors into one contiguous bucket, and back, one launch for the whole list.

Elements are in row-major order whatever a tensor's strides are, tensor after tensor, without padding: the order is the
same on ranks whose tensors are laid out differently.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.table import BLOCK, WARPS, Table, carried, kind_of
from lockstep.impls.kernels.words import FIELDS, find, from_float32, pointer, positions, to_float32, transform

Tensors = Sequence[torch.Tensor] | Table


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
    """`pack` or `unpack`. ``index``: of offsets, see `_transfer`. ValueError for what does not fit."""
    changes = divisor != 1 or scale != 1 or coefficient is not None
    if isinstance(tensors, Table):
        table = tensors
    else:
        table = Table.of(tensors, raw=not changes and all(tensor.dtype == bucket.dtype for tensor in tensors))
    if changes and table.raw:
        raise ValueError("this table is for moving only: make one with raw=False to scale or average")
    check_bucket(bucket, table)
    check_coefficient(coefficient, bucket)
    if not packs:
        refuse_overlaps(table)
    if table.blocks == 0:
        return
    _transfer[(table.blocks,)](
        table.layout,
        table.addresses,
        carried(bucket, table.raw),
        table.entries,
        float(divisor),
        float(scale),
        coefficient,
        MASK=table.mask,
        BUCKET=kind_of(bucket.dtype, table.raw),
        PACKS=packs,
        DIVIDE=divisor != 1,
        BLOCK=BLOCK,
        INDEX=index,
        num_warps=WARPS,
        enable_fp_fusion=False,
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
    kind_of(bucket.dtype, table.raw)


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


@triton.jit(do_not_specialize=["entries"])
def _transfer(
    layout,
    addresses,
    bucket,
    entries,
    divisor,
    scale,
    coefficient,
    MASK: tl.constexpr,
    BUCKET: tl.constexpr,
    PACKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr = tl.int64,
):
    """One block of one tensor. ``INDEX``: of offsets; narrower only to show what would overflow."""
    block = tl.program_id(0)
    entry = find(layout, entries, block)
    fields = layout + entry * FIELDS
    start = (block - tl.load(fields)).to(INDEX) * BLOCK
    kind = tl.load(fields + 3)
    for KIND in tl.static_range(7):
        if MASK & (1 << KIND):
            # Only where kinds are mixed is there something to decide on the device.
            if (MASK == (1 << KIND)) | (kind == KIND):
                _move(
                    layout, fields, tl.load(addresses + entry), bucket, start, divisor, scale, coefficient,
                    KIND, BUCKET, PACKS, DIVIDE, BLOCK, INDEX,
                )  # fmt: skip


@triton.jit
def _move(
    layout,
    fields,
    address,
    bucket,
    start,
    divisor,
    scale,
    coefficient,
    KIND: tl.constexpr,
    BUCKET: tl.constexpr,
    PACKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr,
):
    count = tl.load(fields + 1).to(INDEX)
    dimensions = tl.load(fields + 4).to(tl.int32)
    tensor = pointer(address, KIND)
    flat = bucket + tl.load(fields + 2).to(INDEX)
    # Offsets are made in each branch: shared, they would go through shared memory from one layout to another.
    if dimensions > 0:
        offsets = start + tl.arange(0, BLOCK).to(INDEX)
        inside = offsets < count
        place = positions(offsets, layout, tl.load(fields + 5), dimensions)
        _copy(tensor + place, flat + offsets, inside, divisor, scale, coefficient, KIND, BUCKET, PACKS, DIVIDE)
    else:
        # What the compiler cannot know of addresses from a table is seen here, and told to it: of the pointers to the
        # elements, for Triton before 3.9 forgets what it is told of an integer that became a pointer.
        aligned = ((address | flat.to(tl.int64)) % 16 == 0) & (count - start >= BLOCK)
        if aligned:
            offsets = start + tl.arange(0, BLOCK).to(INDEX)
            _copy(
                tl.multiple_of(tensor + offsets, 16), tl.multiple_of(flat + offsets, 16), None,
                divisor, scale, coefficient, KIND, BUCKET, PACKS, DIVIDE,
            )  # fmt: skip
        else:
            offsets = start + tl.arange(0, BLOCK).to(INDEX)
            inside = offsets < count
            _copy(
                tensor + offsets,
                flat + offsets,
                inside,
                divisor,
                scale,
                coefficient,
                KIND,
                BUCKET,
                PACKS,
                DIVIDE,
            )


@triton.jit
def _copy(
    tensor,
    flat,
    inside,
    divisor,
    scale,
    coefficient,
    KIND: tl.constexpr,
    BUCKET: tl.constexpr,
    PACKS: tl.constexpr,
    DIVIDE: tl.constexpr,
):
    if PACKS:
        x = tl.load(tensor, inside)
    else:
        x = tl.load(flat, inside)
    if KIND < 3:  # numbers, not words
        x = to_float32(x, KIND if PACKS else BUCKET)
        x = transform(x, divisor, scale, coefficient, DIVIDE)
        x = from_float32(x, BUCKET if PACKS else KIND)
    if PACKS:
        tl.store(flat, x, inside)
    else:
        tl.store(tensor, x, inside)
