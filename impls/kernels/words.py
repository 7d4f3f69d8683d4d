"""Code that the kernels share: a piece of a table, the elements of each dtype, and rounding.

bfloat16 is read and written as 16-bit integers, because Triton's interpreter truncates where it should round (triton
3.6 to 3.9); in integers the same code is right in both, and memory still sets the pace.
"""

import triton
import triton.language as tl

# The kinds of `impls.kernels.table`.
BFLOAT16 = tl.constexpr(1)
FLOAT16 = tl.constexpr(2)
ITEMS = tl.constexpr(0x8421224)  # bytes of an element of each kind, four bits for each
# Of a piece: its address (its tensor's where that is strided), its place in the bucket, elements * 8 + kind; and where
# there are strided tensors, its first element, and where its dimensions are described * 256 + how many these are.
ROWS = tl.constexpr(5)


@triton.jit
def piece(pieces, blocks, block):
    """Address, place in the bucket, elements and kind of a piece."""
    row = pointer(pieces, 6) + block
    extent = tl.load(row + 2 * blocks)
    return tl.load(row), tl.load(row + blocks), (extent // 8).to(tl.int32), (extent % 8).to(tl.int32)


@triton.jit
def places(pieces, blocks, block, layout, offsets):
    """The places in memory, in elements from the first, of a piece of a strided tensor."""
    row = pointer(pieces, 6) + block
    described = tl.load(row + 4 * blocks)
    start = tl.load(row + 3 * blocks).to(offsets.dtype)
    return positions(start + offsets, pointer(layout, 6), described // 256, (described % 256).to(tl.int32))


@triton.jit
def is_strided(pieces, blocks, block):
    """True if a piece belongs to a tensor whose elements do not lie one behind the other."""
    return tl.load(pointer(pieces, 6) + block + 4 * blocks) > 0


@triton.jit
def pointer(address, KIND: tl.constexpr):
    """An address as a pointer to words of the kind."""
    if KIND == 0:
        return address.to(tl.pointer_type(tl.float32))
    elif KIND == 1:
        return address.to(tl.pointer_type(tl.int16))
    elif KIND == 2:
        return address.to(tl.pointer_type(tl.float16))
    elif KIND == 3:
        return address.to(tl.pointer_type(tl.int8))
    elif KIND == 4:
        return address.to(tl.pointer_type(tl.int16))
    elif KIND == 5:
        return address.to(tl.pointer_type(tl.int32))
    else:
        return address.to(tl.pointer_type(tl.int64))


@triton.jit
def to_float32(words, KIND: tl.constexpr):
    """Elements as float32, exactly."""
    if KIND == BFLOAT16:
        return (words.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return words.to(tl.float32)


@triton.jit
def from_float32(x, KIND: tl.constexpr):
    """float32 rounded to nearest even. With u the bits, bfloat16 is (u + 0x7FFF + bit 16 of u) >> 16; NaN is 0x7FC0."""
    if KIND == BFLOAT16:
        u = x.to(tl.uint32, bitcast=True)
        rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
        return tl.where(x != x, 0x7FC0, rounded).to(tl.int16)
    elif KIND == FLOAT16:
        return x.to(tl.float16)
    else:
        return x


@triton.jit
def transform(x, divisor, scale, coefficient, DIVIDE: tl.constexpr, CLIP: tl.constexpr):
    """RN(RN(RN(x / divisor) * scale) * coefficient). Without DIVIDE the divisor is a factor: see `launch.factor`."""
    x = tl.div_rn(x, divisor) if DIVIDE else x * divisor
    x = x * scale
    if CLIP:
        x = x * coefficient
    return x


@triton.jit
def positions(offsets, layout, described, dimensions):
    """The places in memory, in elements from the first, of the elements with these row-major indices."""
    place = offsets * 0
    rest = offsets
    dimension = 0
    while dimension < dimensions:  # not range(): Triton 3.6's interpreter cannot count to a loaded number (NumPy 2.4)
        size = tl.load(layout + described + 2 * dimension).to(offsets.dtype)
        stride = tl.load(layout + described + 2 * dimension + 1).to(offsets.dtype)
        place += rest % size * stride
        rest = rest // size
        dimension += 1
    return place


@triton.jit
def lead_of(address, count, SIZE: tl.constexpr):
    """Elements before the first address that is a multiple of 16 bytes."""
    return tl.minimum(((16 - address % 16) % 16 // SIZE).to(tl.int32), count)


@triton.jit
def ends(lane, lead, body, count):
    """Of 32 lanes, the elements before the vectors and behind them, fewer than 16 each; and which lanes have one."""
    first = lane < 16
    index = tl.where(first, lane, lead + body + lane - 16)
    return index, tl.where(first, lane < lead, index < count)
