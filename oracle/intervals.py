"""Intervals of real numbers with float64 ends, for results whose bits are not fixed but whose range is proved.

Rounding to nearest is monotone: x in [lo, hi] implies RN(x) in [RN(lo), RN(hi)]. So a computation of a known shape is
followed by doing each of its steps on intervals: the real operation with outward rounding, then ``round``. An optional
rounding (may the compiler fuse this product into the next sum?) is ``maybe_fused``; a choice of formulas is ``hull``.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lockstep.oracle.rounding import Float64s, format_named, round_array


@dataclass(frozen=True, eq=False)
class Interval:
    """Elementwise low <= x <= high. Both ends are float64 arrays of one shape, read-only; infinite ends are allowed.

    Every operation returns an interval that holds the *real* result for all members of its operands: each end is
    computed in float64 and moved outward by one float, which covers the error of that one rounding (Moore 1966).
    """

    low: Float64s
    high: Float64s

    def __post_init__(self) -> None:
        """Copy, freeze and check the ends: ValueError for NaN, for unlike shapes and for low > high."""
        low, high = np.array(self.low, dtype=np.float64), np.array(self.high, dtype=np.float64)
        if low.shape != high.shape:
            raise ValueError(f"ends of shapes {low.shape} and {high.shape}: they must be alike")
        wrong = ~(low <= high)
        if wrong.any():
            first = np.argwhere(wrong)[0]
            raise ValueError(f"[{low[tuple(first)]}, {high[tuple(first)]}] at {first.tolist()} is no interval")
        low.flags.writeable = high.flags.writeable = False
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @staticmethod
    def point(values: ArrayLike) -> "Interval":
        """[x, x] for every x; float64 holds the values of all four formats exactly."""
        array = np.asarray(values).astype(np.float64)
        return Interval(array, array)

    @staticmethod
    def enclosing(lows: Sequence[Fraction], highs: Sequence[Fraction]) -> "Interval":
        """The smallest float64 interval around [low, high], for each pair of rationals (one-dimensional).

        Beyond the largest float64 an end is infinite.
        """
        return Interval(np.array([_at_most(x) for x in lows]), 0.0 - np.array([_at_most(-x) for x in highs]))

    def __add__(self, other: "Interval") -> "Interval":
        """[a, b] + [c, d] = [a + c, b + d]."""
        return _outward(np.add, (self.low, other.low), (self.high, other.high))

    def __sub__(self, other: "Interval") -> "Interval":
        """[a, b] - [c, d] = [a - d, b - c]."""
        return _outward(np.subtract, (self.low, other.high), (self.high, other.low))

    def __neg__(self) -> "Interval":
        """-[a, b] = [-b, -a], exactly."""
        return Interval(-self.high, -self.low)

    def __mul__(self, other: "Interval") -> "Interval":
        """[min, max] of the four products of ends."""
        return _outward(np.multiply, *product((self.low, self.high), (other.low, other.high)))

    def divide_by_positive(self, other: "Interval") -> "Interval":
        """[min, max] of the four quotients of ends; ValueError unless every divisor is positive."""
        if not (other.low > 0).all():
            raise ValueError(f"a divisor reaches down to {other.low.min()}: every divisor must be positive")
        return _outward(np.divide, *product((self.low, self.high), (other.low, other.high)))

    def square(self) -> "Interval":
        """{x * x}: [0, ...] where 0 is inside; sharper than ``self * self``, which forgets that both are the same x."""
        low, high = np.abs(self.low), np.abs(self.high)
        least = np.where((self.low <= 0) & (self.high >= 0), 0.0, np.minimum(low, high))
        most = np.maximum(low, high)
        return _outward(np.multiply, (least, least), (most, most)).nonnegative()

    def sqrt(self) -> "Interval":
        """{sqrt(x)}; ValueError where x may be negative."""
        if not (self.low >= 0).all():
            raise ValueError(f"square root of {self.low.min()}: no member may be negative")
        return _outward(np.sqrt, (self.low,), (self.high,)).nonnegative()

    def nonnegative(self) -> "Interval":
        """The part at or above zero, for values known not to be negative; ValueError where nothing is left."""
        return Interval(np.maximum(self.low, 0.0), self.high)

    def round(self, form: str, ulps: int = 0) -> "Interval":
        """[RN(low), RN(high)] in the format, each moved outward by ``ulps`` of its neighbours.

        ``ulps`` is for functions documented to err by so many floats from the correctly rounded result.
        Overflow gives an infinite end. float64 is the type of the ends, so rounding to it changes nothing.
        """
        low, high = round_array(self.low, form), round_array(self.high, form)
        for _ in range(ulps):
            low = np.nextafter(low, low.dtype.type(-np.inf))
            high = np.nextafter(high, high.dtype.type(np.inf))
        return Interval(low.astype(np.float64), high.astype(np.float64))

    def maybe_fused(self, form: str) -> "Interval":
        """Rounded, or handed on unrounded into the next operation (a fused multiply-add): the hull of both."""
        return hull(self, self.round(form))

    def contains(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Elementwise low <= x <= high; never true of NaN. -0 and +0 are one number here."""
        x = np.asarray(values).astype(np.float64)
        if x.shape != self.low.shape:
            raise ValueError(f"values of shape {x.shape} against an interval of shape {self.low.shape}")
        return (self.low <= x) & (x <= self.high)


def hull(*intervals: Interval) -> Interval:
    """The smallest interval that holds all of them, elementwise."""
    low, high = intervals[0].low, intervals[0].high
    for other in intervals[1:]:
        low, high = np.minimum(low, other.low), np.maximum(high, other.high)
    return Interval(low, high)


def floats_inside(interval: Interval, form: str) -> NDArray[np.int64]:
    """Count the values of the format that each element may take (float32 or narrower): 1 means the check is bitwise.

    The bits of a float, read as sign and magnitude, number the floats in order.
    """
    number = format_named(form)
    if number.bytes > 4:
        raise ValueError(f"floats_inside counts up to 32 bits, not {form}")

    def position(ends: Float64s) -> NDArray[np.int64]:
        bits = round_array(ends, form).view(f"u{number.bytes}").astype(np.int64)
        magnitude = bits & (2 ** (8 * number.bytes - 1) - 1)
        ordered: NDArray[np.int64] = np.where(bits == magnitude, magnitude, -magnitude)
        return ordered

    return position(interval.high) - position(interval.low) + 1


def _at_most(x: Fraction) -> float:
    """The greatest float64 that is no greater than x."""
    try:
        near = float(x)
    except OverflowError:
        return sys.float_info.max if x > 0 else -np.inf
    return math.nextafter(near, -math.inf) if near > x else near  # Python compares the two exactly


def _outward(operation: np.ufunc, *ends: tuple[Float64s, ...]) -> Interval:
    """The least and the greatest of the operation's results at these ends, each moved outward by one float."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # overflow gives an infinite end, as it should
        results = [operation(*operands) for operands in ends]
        return Interval(
            np.nextafter(np.minimum.reduce(results), -np.inf), np.nextafter(np.maximum.reduce(results), np.inf)
        )
