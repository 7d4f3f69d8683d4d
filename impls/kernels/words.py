"""What the kernels share: finding the tensor of a block, the elements of each dtype, and rounding.

bfloat16 is read and written as 16-bit integers, because Triton's interpreter truncates where it should round (triton
3.6 to 3.9); in integers the same code is right in both, and memory still sets the pace.
"""

import triton
import triton.language as tl

# The kinds of `impls.kernels.table`.
BFLOAT16 = tl.constexpr(1)
FLOAT16 = tl.constexpr(2)
FIELDS = tl.constexpr(6)


@triton.jit
def find(layout, entries, block):
    """The entry that a block belongs to: the last one whose first block is not after it."""
    low, high = 0, entries
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(layout + middle * FIELDS) <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def pointer(address, KIND: tl.constexpr):
    """An address from a table as a pointer to words of the kind."""
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
def transform(x, divisor, scale, coefficient, DIVIDE: tl.constexpr):
    """RN(RN(RN(x / divisor) * scale) * coefficient); a division by one, which is left out, would cost something."""
    if DIVIDE:
        x = tl.div_rn(x, divisor)
    x = x * scale
    if coefficient is not None:
        x = x * tl.load(coefficient)
    return x


@triton.jit
def positions(offsets, layout, described, dimensions):
    """Where in memory, in elements from the first, the elements with these row-major indices are."""
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
