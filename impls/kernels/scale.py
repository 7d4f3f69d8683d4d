"""Average, scale and clip in place, in one pass over a bucket or a list, with the coefficient on the device."""

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.norm import norm_and_coefficient
from lockstep.impls.kernels.pack import Tensors, check_coefficient, refuse_overlaps
from lockstep.impls.kernels.table import BLOCK, WARPS, Table
from lockstep.impls.kernels.words import FIELDS, find, from_float32, pointer, positions, to_float32, transform


def scale_(tensors: Tensors, divisor: float = 1.0, scale: float = 1.0, coefficient: torch.Tensor | None = None) -> None:
    """Every element x <- RN(RN(RN(x / divisor) * scale) * coefficient), in float32, then rounded to its own dtype.

    ``divisor``: the number of ranks, after a sum over them; ``scale``: say 1 / k for k micro-batches;
    ``coefficient``: one float32 on the device, such as that of `impls.kernels.norm.clip_coefficient`.
    """
    table = tensors if isinstance(tensors, Table) else Table.of(tensors)
    if table.raw:
        raise ValueError("this table is for moving only: make one with raw=False to scale")
    if not table.tensors:
        return
    check_coefficient(coefficient, table.layout)
    refuse_overlaps(table)
    if table.blocks == 0:
        return
    _scale[(table.blocks,)](
        table.layout,
        table.addresses,
        table.entries,
        float(divisor),
        float(scale),
        coefficient,
        MASK=table.mask,
        DIVIDE=divisor != 1,
        BLOCK=BLOCK,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )


def average_and_clip_(tensors: Tensors, divisor: float, max_norm: float, scale: float = 1.0) -> torch.Tensor:
    """Averages summed gradients and clips them by the norm *of the averages*; returns that norm, on the device.

    Three launches, and no wait: the average is not stored before it is clipped.
    """
    table = tensors if isinstance(tensors, Table) else Table.of(tensors)
    found = norm_and_coefficient(table, max_norm, divisor, scale)
    scale_(table, divisor, scale, found[1])
    return found[0]


@triton.jit(do_not_specialize=["entries"])
def _scale(
    layout,
    addresses,
    entries,
    divisor,
    scale,
    coefficient,
    MASK: tl.constexpr,
    DIVIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr = tl.int64,
):
    block = tl.program_id(0)
    entry = find(layout, entries, block)
    fields = layout + entry * FIELDS
    start = (block - tl.load(fields)).to(INDEX) * BLOCK
    kind = tl.load(fields + 3)
    for KIND in tl.static_range(3):
        if MASK & (1 << KIND):
            if (MASK == (1 << KIND)) | (kind == KIND):
                count = tl.load(fields + 1).to(INDEX)
                dimensions = tl.load(fields + 4).to(tl.int32)
                address = tl.load(addresses + entry)
                if dimensions > 0:
                    offsets = start + tl.arange(0, BLOCK).to(INDEX)
                    place = positions(offsets, layout, tl.load(fields + 5), dimensions)
                    words = pointer(address, KIND) + place
                    _rewrite(words, offsets < count, divisor, scale, coefficient, KIND, DIVIDE)
                else:
                    if (address % 16 == 0) & (count - start >= BLOCK):
                        offsets = start + tl.arange(0, BLOCK).to(INDEX)
                        words = tl.multiple_of(pointer(address, KIND) + offsets, 16)
                        _rewrite(words, None, divisor, scale, coefficient, KIND, DIVIDE)
                    else:
                        offsets = start + tl.arange(0, BLOCK).to(INDEX)
                        words = pointer(address, KIND) + offsets
                        _rewrite(words, offsets < count, divisor, scale, coefficient, KIND, DIVIDE)


@triton.jit
def _rewrite(words, inside, divisor, scale, coefficient, KIND: tl.constexpr, DIVIDE: tl.constexpr):
    x = transform(to_float32(tl.load(words, inside), KIND), divisor, scale, coefficient, DIVIDE)
    tl.store(words, from_float32(x, KIND), inside)
