"""Rounding to nearest even, exactly and once, into the formats of ``oracle/formats.py``.

Everything else in the oracle that speaks of rounding (intervals, bounds, optimizers, casts) rests on this page.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.formats import FORMATS, Format

Float64s = NDArray[np.float64]
Float32s = NDArray[np.float32]
_DTYPES = {form.numpy for form in FORMATS.values()}


def format_named(name: str) -> Format:
    """The format of that name; ValueError for any other name."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: it must be one of {', '.join(FORMATS)}")
    return FORMATS[name]


def exact(value: Fraction | float | np.integer[Any]) -> Fraction:
    """The rational number that a Python or NumPy number is. Infinities and NaN raise ValueError: they are none."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, (int, np.integer)):
        return Fraction(int(value))
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return Fraction(float(value))


def ulp(value: Fraction | float, form: str) -> Fraction:
    """Spacing of the format at ``value``: 2**(max(floor(log2 |value|), emin) - p + 1).

    At zero and among subnormals it is the least subnormal. At a power of two it is the spacing above.
    (Goldberg 1991; Muller, "On the definition of ulp(x)", 2005.)
    """
    number = format_named(form)
    size = abs(exact(value))
    if size == 0:
        return number.least_subnormal
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    return Fraction(2) ** (max(exponent, number.emin) - number.precision + 1)


def half_ulp(value: Fraction | float, form: str) -> Fraction:
    """The most by which a number can differ from ``value`` and still round to it."""
    return ulp(value, form) / 2


def round_to_nearest(value: Fraction | float, form: str) -> float:
    """RN(x) = ulp(x) * rint(x / ulp(x)), ties to even; beyond the largest value, infinity (IEEE 754-2019, 4.3.1).

    Overflow is decided after rounding with an unbounded exponent, as the standard says. The result is a float64,
    which holds every value of every format exactly. Infinities, NaN and the sign of zero pass through; the rational
    zero has none, and is +0.
    """
    number = format_named(form)
    if value == 0 or not (isinstance(value, Fraction) or math.isfinite(value)):
        return float(value)
    x = exact(value)
    spacing = ulp(x, form)
    size = round(abs(x) / spacing) * spacing
    rounded = math.inf if size > number.largest else float(size)
    return rounded if x > 0 else -rounded


def representable(value: Fraction | float, form: str) -> bool:
    """True if the format holds this finite value exactly.

    A value k 2**e with k odd is one of the format where k has at most p bits, 2**e is no less than the least subnormal,
    and the leading bit is at most 2**emax.
    """
    number = format_named(form)
    if not isinstance(value, (Fraction, int)):
        if not math.isfinite(value):
            return False
        value = float(value)
    over, below = value.as_integer_ratio()
    if over == 0:
        return True
    if below & (below - 1):  # not a power of two
        return False
    size, shift = abs(over), below.bit_length() - 1
    lowest = (size & -size).bit_length() - 1 - shift
    leading = size.bit_length() - 1 - shift
    return number.emin - number.precision + 1 <= lowest > leading - number.precision and leading <= number.emax


def round_array(values: NDArray[np.floating], form: str) -> NDArray[np.floating]:
    """``round_to_nearest`` for every element of an array of one of the four formats; the result has dtype ``form``.

    NumPy's own conversion rounds once, except to bfloat16 (see ``round_through_float32``). There it is ulp(x) *
    rint(x / ulp(x)): both products are exact in float64, since ulp(x) is a power of two, and ``rint`` rounds ties to
    even.
    """
    number = format_named(form)
    if values.dtype not in _DTYPES:
        raise ValueError(f"dtype {values.dtype} cannot be rounded: it must be one of {', '.join(FORMATS)}")
    with np.errstate(over="ignore", invalid="ignore"):
        if form != "bfloat16":
            return values.astype(number.numpy)
        x = values.astype(np.float64)
        _, exponent = np.frexp(x)  # |x| = m * 2**exponent with m in [1/2, 1)
        spacing = np.maximum(exponent - 1, number.emin) - number.precision + 1
        rounded = np.ldexp(np.rint(np.ldexp(x, -spacing)), spacing)
        rounded = np.where(np.abs(rounded) > float(number.largest), np.copysign(np.inf, x), rounded)
        return rounded.astype(number.numpy)


def round_through_float32(values: Float64s, form: str) -> NDArray[np.floating]:
    """RN(RN32(x)): the *double rounding* that torch and ml_dtypes make of a float64 on its way to 16 bits.

    It differs from RN(x) where RN32(x) falls on the middle between two neighbours: 1 + 2**-8 + 2**-40 becomes
    1 in bfloat16, and the nearest is 1 + 2**-7. (Measured, torch 2.13 and ml_dtypes 0.6.)
    """
    return round_array(round_array(values, "float32"), form)


def double_rounding_is_harmless(through: str, form: str) -> bool:
    """True if RN(RN_through(a op b)) = RN(a op b) for a, b of the format and op one of + - * / sqrt: P >= 2 p + 2.

    So float32 sums, products and quotients of bfloat16 or float16 values may be rounded again without harm (24 >= 18,
    24 >= 24). It says nothing about values that are not one such operation away from the format, nor about fused
    operations. (Figueroa, "When is double rounding innocuous?", 1995; normal range.)
    """
    return format_named(through).precision >= 2 * format_named(form).precision + 2


def rounded_reciprocal(world_size: int, form: str) -> Fraction:
    """r = RN(1 / N), the factor by which DDP and NCCL average; r * N = 1 only where N is a power of two."""
    if world_size < 1:
        raise ValueError(f"world_size {world_size} must be at least 1")
    return Fraction(round_to_nearest(Fraction(1, world_size), form))


def fma_float32(a: Float32s, b: Float32s, c: Float32s) -> Float32s:
    """RN32(a * b + c), rounded once, element by element (IEEE 754-2019, 5.4.1, fusedMultiplyAdd).

    The product of two float32 is exact in float64 (48 <= 53 bits). Knuth's TwoSum gives the sum s and its error e
    without loss; *round to odd* then makes s odd where e != 0, so that rounding s to float32 cannot fall for a false
    tie (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008: 53 >= 24 + 2).
    """
    if any(x.dtype != np.float32 for x in (a, b, c)):
        raise ValueError(f"fma_float32 takes float32 arrays, not {a.dtype}, {b.dtype}, {c.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        product, addend = np.broadcast_arrays(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
        s = product + addend
        t = s - product
        e = (product - (s - t)) + (addend - t)
        odd = (s.view(np.int64) & 1) == 1
        inexact = np.isfinite(s) & (e != 0)
        towards_e = np.nextafter(s, np.where(e > 0, np.inf, -np.inf))
        rounded: Float32s = np.where(inexact & ~odd, towards_e, s).astype(np.float32)
    return rounded


def bfloat16_bits(values: Float32s) -> NDArray[np.uint16]:
    """float32 -> bfloat16 as integers: with u the 32 bits, (u + 0x7FFF + (bit 16 of u)) >> 16; NaN gives 0x7FC0.

    Adding just under half of the dropped part, and one more where the kept part is odd, carries upwards exactly when
    rounding to nearest even does, through subnormals and into infinity.
    """
    if values.dtype != np.float32:
        raise ValueError(f"bfloat16_bits takes float32, not {values.dtype}")
    u = values.view(np.uint32).astype(np.uint64)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype(np.uint16)


def sqrt_below(value: Fraction) -> Fraction:
    """A rational r <= sqrt(value) with sqrt(value) - r <= 2**-128 sqrt(value); exact where sqrt(value) is rational.

    sqrt(a / b) = sqrt(a b) / b, and the integer square root of a b 2**256 is floor(2**128 sqrt(a b)).
    """
    if value < 0:
        raise ValueError(f"{value} has no real square root: it must not be negative")
    scaled = (value.numerator * value.denominator) << 256
    return Fraction(math.isqrt(scaled), value.denominator << 128)


def sqrt_above(value: Fraction) -> Fraction:
    """A rational r >= sqrt(value) with r - sqrt(value) <= 2**-128 sqrt(value); exact where sqrt(value) is rational."""
    below = sqrt_below(value)
    return below if below * below == value else below + Fraction(1, value.denominator << 128)
