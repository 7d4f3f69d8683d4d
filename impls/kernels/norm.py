"""The 2-norm of a list of tensors, as of their concatenation, and the coefficient that clips by it.

Each block divides by a power of two near its largest element before it squares, which loses nothing, and hands on the
exponent beside the sum. So no square overflows, and none that matters underflows. Sums are float32; the blocks' are
added in an order that depends on the lengths alone, so that a run repeats its bits.
"""

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.pack import Tensors
from lockstep.impls.kernels.table import BLOCK, WARPS, Table
from lockstep.impls.kernels.words import FIELDS, find, pointer, positions, to_float32, transform

SUMS = 4096  # blocks' sums that the second kernel adds at a time


def norm(tensors: Tensors, divisor: float = 1.0, scale: float = 1.0) -> torch.Tensor:
    """One float32 on the device: the square root of the sum of squares of all elements.

    Of ``RN(x / divisor) * scale`` where given, in float32: the norm of gradients that are summed but not yet averaged,
    as if they were. Replicated gradients have this norm on every rank; only the squares of *shards* add up over ranks.
    """
    return norm_and_coefficient(tensors, float("inf"), divisor, scale)[0]


def squared_norm(tensors: Tensors, divisor: float = 1.0, scale: float = 1.0) -> torch.Tensor:
    """The norm's square, one float32 on the device: what shards of a gradient add up over ranks.

    It overflows and underflows where the square does; shards of such sizes exchange norms instead.
    """
    return norm_and_coefficient(tensors, float("inf"), divisor, scale)[2]


def clip_coefficient(tensors: Tensors, max_norm: float, divisor: float = 1.0, scale: float = 1.0) -> torch.Tensor:
    """min(1, max_norm / (norm + 1e-6)), one float32 on the device, division correctly rounded; NaN where the norm is.

    (The rule of ``torch.nn.utils.clip_grad_norm_``.)
    """
    return norm_and_coefficient(tensors, max_norm, divisor, scale)[1]


def norm_and_coefficient(tensors: Tensors, max_norm: float, divisor: float, scale: float) -> torch.Tensor:
    """Three float32 on the device, from two launches: the norm, the coefficient that clips by it, the norm's square."""
    if not max_norm >= 0:
        raise ValueError(f"max_norm {max_norm} must be at least 0")
    table = tensors if isinstance(tensors, Table) else Table.of(tensors)
    if table.raw:
        raise ValueError("this table is for moving only: make one with raw=False to take its norm")
    device = table.layout.device
    partials = torch.empty((2, table.blocks), dtype=torch.float32, device=device)
    result = torch.empty(3, dtype=torch.float32, device=device)
    if table.blocks:
        _partial_norms[(table.blocks,)](
            table.layout,
            table.addresses,
            partials,
            table.entries,
            table.blocks,
            float(divisor),
            float(scale),
            MASK=table.mask,
            DIVIDE=divisor != 1,
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=True,
        )
    if not table.tensors and device.type == "cpu":
        return torch.tensor([0.0, 1.0, 0.0])  # of nothing at all, there is no device to ask
    _whole_norm[(1,)](
        partials, result, table.blocks, float(max_norm), BLOCK=SUMS, num_warps=WARPS, enable_fp_fusion=True
    )
    return result


@triton.jit
def power_of_two(exponent):
    """2**exponent for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(x):
    """floor(log2 x) for a normal x >= 0, and between -126 and 126 for all others: halving twice by it is safe."""
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    return tl.minimum(tl.maximum(exponent, -126), 126)


@triton.jit(do_not_specialize=["entries", "blocks"])
def _partial_norms(
    layout,
    addresses,
    partials,
    entries,
    blocks,
    divisor,
    scale,
    MASK: tl.constexpr,
    DIVIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr = tl.int64,
):
    """For one block: its exponent e, and the sum of (x / 2**e)**2."""
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
                    x = tl.load(pointer(address, KIND) + place, offsets < count, other=0)
                    _sum(x, partials, block, blocks, divisor, scale, KIND, DIVIDE)
                else:
                    if (address % 16 == 0) & (count - start >= BLOCK):
                        offsets = start + tl.arange(0, BLOCK).to(INDEX)
                        x = tl.load(tl.multiple_of(pointer(address, KIND) + offsets, 16))
                        _sum(x, partials, block, blocks, divisor, scale, KIND, DIVIDE)
                    else:
                        offsets = start + tl.arange(0, BLOCK).to(INDEX)
                        x = tl.load(pointer(address, KIND) + offsets, offsets < count, other=0)
                        _sum(x, partials, block, blocks, divisor, scale, KIND, DIVIDE)


@triton.jit
def _sum(
    words,
    partials,
    block,
    blocks,
    divisor,
    scale,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
):
    x = transform(to_float32(words, KIND), divisor, scale, None, DIVIDE)
    exponent = exponent_of(tl.max(tl.abs(x), 0))
    x = x * power_of_two(-exponent)
    tl.store(partials + block, exponent.to(tl.float32))
    tl.store(partials + blocks + block, tl.sum(x * x, 0))


@triton.jit(do_not_specialize=["blocks"])
def _whole_norm(partials, result, blocks, max_norm, BLOCK: tl.constexpr):
    """sqrt(sum over blocks of sum * 2**(2 e)), the greatest e taken out first; the coefficient; the square."""
    lanes = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], -126.0, tl.float32)
    begin = 0
    while begin < blocks:
        exponent = tl.load(partials + begin + lanes, begin + lanes < blocks, other=-126.0)
        highest = tl.maximum(highest, exponent)
        begin += BLOCK
    top = tl.max(highest, 0)
    sums = tl.zeros([BLOCK], tl.float32)
    begin = 0
    while begin < blocks:
        inside = begin + lanes < blocks
        exponent = tl.load(partials + begin + lanes, inside, other=-126.0)
        part = tl.load(partials + blocks + begin + lanes, inside, other=0.0)
        # 2**(2 d) in two factors, as d may be -252; a sum that underflows is nothing beside the greatest.
        down = power_of_two(tl.maximum((exponent - top).to(tl.int32), -126))
        sums += part * down * down
        begin += BLOCK
    total = tl.sum(sums, 0)
    unit = power_of_two(top.to(tl.int32))
    norm = tl.sqrt_rn(total) * unit
    clipped = tl.div_rn(max_norm, norm + 1e-6)
    tl.store(result, norm)
    tl.store(result + 1, tl.where(clipped >= 1.0, 1.0, clipped))
    tl.store(result + 2, total * unit * unit)
