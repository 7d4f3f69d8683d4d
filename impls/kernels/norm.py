"""The 2-norm of a list of tensors, as of their concatenation, and the coefficient that clips by it.

Each piece is divided by a power of two near its largest element before it is squared, which loses nothing, and the
exponent is kept beside the sum. So no square overflows, and none that matters underflows. Sums are float32; each
program adds those of its pieces, and a last one those of the programs, in an order that depends on lengths and on how
addresses are aligned to 16 bytes, and on nothing else: a run repeats its bits.
"""

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.launch import Launcher, factor
from lockstep.impls.kernels.pack import TILE, Tensors
from lockstep.impls.kernels.table import BYTES, Table
from lockstep.impls.kernels.words import (
    ITEMS,
    ends,
    is_strided,
    lead_of,
    piece,
    places,
    pointer,
    to_float32,
    transform,
)

SUMS = 2048  # programs that take the pieces in turn, whose sums one program adds: enough to fill any GPU of today


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
    if not table.tensors and device.type == "cpu":
        return torch.tensor([0.0, 1.0, 0.0])  # of nothing at all, there is no device to ask
    programs = min(table.blocks, SUMS)
    numbers = torch.empty(3 + 2 * programs, dtype=torch.float32, device=device)
    result, partials = numbers[:3], numbers.data_ptr() + 12
    divisor, divide = factor(divisor)
    if programs:
        _PARTIAL_NORMS(
            programs,
            (table.pieces.data_ptr(), table.layout.data_ptr(), table.blocks, partials, divisor, float(scale)),
            MASK=table.mask,
            DIVIDE=divide,
            STRIDED=table.strided,
            BYTES=BYTES,
            TILE=TILE,
        )
    _WHOLE_NORM(1, (partials, result.data_ptr(), programs, float(max_norm)), SUMS=SUMS)
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


@triton.jit(do_not_specialize=["pieces", "layout", "blocks", "partials"])
def _partial_norms(
    pieces: tl.int64,
    layout: tl.int64,
    blocks: tl.int64,
    partials: tl.int64,
    divisor,
    scale,
    MASK: tl.constexpr,
    DIVIDE: tl.constexpr,
    STRIDED: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Of every so many pieces, an exponent e and the sum of (x / 2**e)**2."""
    program = tl.program_id(0)
    block = program.to(tl.int64)
    top, total = tl.full([], -126, tl.int32), 0.0
    while block < blocks:
        address, _, count, kind = piece(pieces, blocks, block)
        for KIND in tl.static_range(3):
            if MASK & (1 << KIND):
                if (MASK == (1 << KIND)) | (kind == KIND):
                    dense = True
                    if STRIDED:
                        dense = not is_strided(pieces, blocks, block)
                    if dense:
                        top, total = _add_dense(address, count, top, total, divisor, scale, KIND, DIVIDE, BYTES)
                    elif STRIDED:
                        begin = count * 0
                        while begin < count:
                            offsets = begin.to(tl.int64) + tl.arange(0, TILE)
                            words = pointer(address, KIND) + places(pieces, blocks, block, layout, offsets)
                            x = tl.load(words, offsets < count, other=0)
                            top, total = _add(x, top, total, divisor, scale, KIND, DIVIDE)
                            begin += TILE
        block += tl.num_programs(0)
    result = pointer(partials, 0) + program
    tl.store(result, top.to(tl.float32))
    tl.store(result + tl.num_programs(0), total)


@triton.jit
def _add_dense(
    address,
    count,
    top,
    total,
    divisor,
    scale,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    BYTES: tl.constexpr,
):
    """A piece in vectors of 16 bytes, and what is before and behind them."""
    SIZE: tl.constexpr = (ITEMS >> (4 * KIND)) & 15
    lead = lead_of(address, count, SIZE)
    body = (count - lead) // (16 // SIZE) * (16 // SIZE)
    if body > 0:
        vectors = tl.arange(0, BYTES // SIZE)
        words = tl.multiple_of(pointer(address + lead * SIZE, KIND) + vectors, 16)
        top, total = _add(tl.load(words, vectors < body, other=0), top, total, divisor, scale, KIND, DIVIDE)
    if body < count:
        index, inside = ends(tl.arange(0, 32), lead, body, count)
        rest = tl.load(pointer(address, KIND) + index, inside, other=0)
        top, total = _add(rest, top, total, divisor, scale, KIND, DIVIDE)
    return top, total


@triton.jit
def _add(words, top, total, divisor, scale, KIND: tl.constexpr, DIVIDE: tl.constexpr):
    """A sum of squares, and its exponent, with those of these elements."""
    x = transform(to_float32(words, KIND), divisor, scale, scale, DIVIDE, False)
    exponent = exponent_of(tl.max(tl.abs(x), 0))
    x = x * power_of_two(-exponent)
    highest = tl.maximum(top, exponent)
    return highest, lowered(total, top - highest) + lowered(tl.sum(x * x, 0), exponent - highest)


@triton.jit
def lowered(sums, exponent):
    """sums * 2**(2 * exponent) for an exponent of at most 0, in two factors, as it may be -252.

    What underflows is nothing beside the greatest.
    """
    down = power_of_two(tl.maximum(exponent, -126))
    return sums * down * down


@triton.jit(do_not_specialize=["partials", "result", "count"])
def _whole_norm(
    partials: tl.int64,
    result: tl.int64,
    count: tl.int64,
    max_norm,
    SUMS: tl.constexpr,
):
    """sqrt(sum of sums * 2**(2 e)), the greatest e taken out first; the coefficient; the square."""
    partials, result = pointer(partials, 0), pointer(result, 0)
    lanes = tl.arange(0, SUMS)
    exponents = tl.load(partials + lanes, lanes < count, other=-126.0)
    sums = tl.load(partials + count + lanes, lanes < count, other=0.0)
    top = tl.max(exponents, 0)
    total = tl.sum(lowered(sums, (exponents - top).to(tl.int32)), 0)
    unit = power_of_two(top.to(tl.int32))
    norm = tl.sqrt_rn(total) * unit
    clipped = tl.div_rn(max_norm, norm + 1e-6)
    tl.store(result, norm)
    tl.store(result + 1, tl.where(clipped >= 1.0, 1.0, clipped))
    tl.store(result + 2, total * unit * unit)


_PARTIAL_NORMS = Launcher(_partial_norms, fused=True)
_WHOLE_NORM = Launcher(_whole_norm, fused=True)
