"""Proved bounds for computed sums, means, dot products, norms and casts, in exact rational arithmetic.

Every rule returns an ``Enclosure``: the result of *any* conforming computation lies in it. All rules assume binary
arithmetic, rounding to nearest, no overflow (checked), operands that are values of the format (checked), and gradual
underflow; with ``flush_to_zero`` hardware may also read and write subnormals as zero. Notation: p bits, u = 2**-p, eta
the least subnormal, tiny the least normal, n terms x_i with sum s and S = sum of |x_i|.

An enclosure that holds proves little by itself: ``oracle/power.py`` tells the faults that would certainly break it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.intervals import Interval
from lockstep.oracle.rounding import (
    exact,
    format_named,
    half_ulp,
    representable,
    round_array,
    round_to_nearest,
    rounded_reciprocal,
    sqrt_above,
    sqrt_below,
    ulp,
)

Numbers = Sequence[Fraction | float]


@dataclass(frozen=True)
class Enclosure:
    """The closed interval [low, high] of rationals."""

    low: Fraction
    high: Fraction

    def contains(self, value: Fraction | float) -> bool:
        """low <= value <= high."""
        return self.low <= exact(value) <= self.high

    def disjoint(self, other: "Enclosure") -> bool:
        """No value lies in both."""
        return self.high < other.low or other.high < self.low


# Sums


def sum_any_order(terms: Numbers, form: str, flush_to_zero: bool = False) -> Enclosure:
    """|computed - s| <= (n - 1) u S, for every order and bracketing, with every partial sum rounded to the format.

    No restriction on n and no underflow term: a sum in the subnormal range is exact. This is also the bound of a ring
    all-reduce of one element over n ranks, with the format that travels. (Jeannerod and Rump, SIAM J. Matrix Anal.
    Appl. 34, 2013; Lange and Rump, BIT 57, 2017.)
    """
    values = _terms(terms, form)
    size = _size(values)
    return _around(_total(values), _sum_error(len(values), size, form, flush_to_zero), size, form)


def sum_known_order(terms: Numbers, partials: Numbers, form: str) -> Enclosure:
    """|computed - s| <= sum of half_ulp(t_k) over the n - 1 *computed* partial sums t_k, the last one included.

    The running error bound: each addition errs by at most half an ulp of its own result, and not at all below 2 tiny.
    Needs gradual underflow. (Wilkinson 1963; Higham, "Accuracy and Stability", 2002, 4.3.)
    """
    values, sums = _terms(terms, form), _terms(partials, form)
    if len(sums) != len(values) - 1:
        raise ValueError(f"{len(values)} terms are added in {len(values) - 1} steps, not {len(sums)}")
    smallest = 2 * format_named(form).least_normal
    error = _total(half_ulp(t, form) for t in sums if abs(t) >= smallest)
    return _around(_total(values), error, _size(values), form)


def sum_mixed(terms: Numbers, accumulator: str, wire: str) -> Enclosure:
    """Sum in the accumulator's format in any order, then one rounding: cast(sum_any_order), as NVLS reduces 16 bits.

    At most (n - 1) u_acc S + u_wire (|s| + (n - 1) u_acc S) + eta_wire / 2 from s.
    """
    return cast(sum_any_order(terms, accumulator), wire)


# Means over world_size ranks; the three names are those of oracle.averaging.AVERAGINGS


def mean_sum_then_divide(terms: Numbers, world_size: int, form: str, flush_to_zero: bool = False) -> Enclosure:
    """The enclosure [a, b] of the sum, divided: [a, b] / N, widened by u max(|a|, |b|) / N + eta / 2. (gloo's AVG.)"""
    n, s = _divisor(world_size, form), sum_any_order(terms, form, flush_to_zero)
    error = _u(form) * max(abs(s.low), abs(s.high)) / n + _underflow(form, flush_to_zero)
    return Enclosure(s.low / n - error, s.high / n + error)


def mean_divide_then_sum(terms: Numbers, world_size: int, form: str, flush_to_zero: bool = False) -> Enclosure:
    """pre = u S / N + n eta / 2 from the divisions, then (n - 1) u (S / N + pre). (DDP's ``allreduce_hook``.)"""
    values, n = _terms(terms, form), _divisor(world_size, form)
    pre = _u(form) * _size(values) / n + len(values) * _underflow(form, flush_to_zero)
    return _mean_of_scaled(values, n, pre, form, flush_to_zero)


def mean_multiply_then_sum(
    terms: Numbers, world_size: int, form: str, reciprocal: Fraction | None = None, flush_to_zero: bool = False
) -> Enclosure:
    """pre = (|r N - 1| + u |r N|) S / N + n eta / 2, then (n - 1) u (S / N + pre). (DDP; NCCL's AVG.)

    r is 1 / N as the implementation rounds it: RN(1 / N) in the format of the terms unless given. torch on CPU scales
    16-bit tensors by the float32 reciprocal, NCCL by one in the wire's format. A product rounded to 16 bits through
    float32 is covered: one rounding errs by at most u / (1 + u), and u - u / (1 + u) is more than 2**-24.
    """
    values = _terms(terms, form)
    nearest = rounded_reciprocal(world_size, form)
    r = nearest if reciprocal is None else reciprocal
    relative = abs(r * world_size - 1) + _u(form) * abs(r * world_size)
    pre = relative * _size(values) / world_size + len(values) * _underflow(form, flush_to_zero)
    return _mean_of_scaled(values, world_size, pre, form, flush_to_zero)


MEANS: dict[str, Callable[[Numbers, int, str], Enclosure]] = {
    "sum then divide": mean_sum_then_divide,
    "divide then sum": mean_divide_then_sum,
    "multiply by reciprocal then sum": mean_multiply_then_sum,
}


# Dot products and norms


def dot_any_order(left: Numbers, right: Numbers, form: str, flush_to_zero: bool = False) -> Enclosure:
    """|computed - x.y| <= g S + n (eta / 2) (1 + g), with S = sum of |x_i y_i|, g = gamma_n = n u / (1 - n u).

    Any order, any use of fused multiply-add: each product meets at most n roundings, and at most n operations
    underflow. Needs n u < 1. (Higham 2002, 3.1 and 3.5.) Flushed: 2 n operations lose up to tiny each, and a term with
    a subnormal factor may be lost.
    """
    if len(left) != len(right):
        raise ValueError(f"a dot product of {len(left)} by {len(right)} values: they must be as many")
    n, (x, over), (y, by) = len(left), _whole_terms(left, form), _whole_terms(right, form)
    products = [p * q for p, q in zip(x, y, strict=True)]
    size = Fraction(sum(map(abs, products)), over * by)
    error = _dot_error(n, size, form)
    if flush_to_zero:
        tiny = format_named(form).least_normal
        subnormal = (min(Fraction(abs(p), over), Fraction(abs(q), by)) < tiny for p, q in zip(x, y, strict=True))
        lost = Fraction(sum(map(abs, itertools.compress(products, subnormal))), over * by)
        error += lost + 2 * n * tiny * (1 + _gamma(n, form))
    return _around(Fraction(sum(products), over * by), error, size, form)


def dot_mixed(left: Numbers, right: Numbers, accumulator: str, out: str) -> Enclosure:
    """Products and sums in the accumulator's format, one rounding at the end: cast(dot_any_order), as a 16-bit matmul.

    (Measured on CPU: float32 accumulation and one final rounding.)
    """
    return cast(dot_any_order(left, right, accumulator), out)


def squared_norm(values: Numbers, form: str) -> Enclosure:
    """dot_any_order(x, x), cut at zero: a sum of squares is never negative."""
    q = dot_any_order(values, values, form)
    return Enclosure(max(q.low, Fraction(0)), q.high)


def norm(values: Numbers, form: str, sqrt_ulps: int = 0) -> Enclosure:
    """square_root(squared_norm): the 2-norm of one tensor."""
    return square_root(squared_norm(values, form), form, sqrt_ulps)


def norm_of_shards(partials: Sequence[Enclosure], form: str, sqrt_ulps: int = 0) -> Enclosure:
    """sqrt of the sum, in any order, of squared norms computed apart: the norm of a gradient held in *shards*.

    |sum - exact sum| <= (n - 1) u sum of high_i. Of replicated gradients this sum would be world_size times too large.
    """
    low, high = _total(part.low for part in partials), _total(part.high for part in partials)
    return square_root(_widened(low, high, _sum_error(len(partials), high, form), form), form, sqrt_ulps)


def norm_of_norms(norms: Sequence[Enclosure], form: str, sqrt_ulps: int = 0) -> Enclosure:
    """The 2-norm of a vector of computed norms, one per tensor, as ``clip_grad_norm_`` takes it."""
    low, high = _total(part.low**2 for part in norms), _total(part.high**2 for part in norms)
    return square_root(_widened(low, high, _dot_error(len(norms), high, form), form), form, sqrt_ulps)


def square_root(radicand: Enclosure, form: str, sqrt_ulps: int = 0) -> Enclosure:
    """[RN(sqrt(low)), RN(sqrt(high))], each end moved outward by ``sqrt_ulps`` ulps (IEEE 0; torch on CPU 1)."""
    low = exact(round_to_nearest(sqrt_below(radicand.low), form))
    high = exact(round_to_nearest(sqrt_above(radicand.high), form))
    return Enclosure(max(low - sqrt_ulps * ulp(low, form), Fraction(0)), high + sqrt_ulps * ulp(high, form))


# Casts


def cast(value: Enclosure, form: str) -> Enclosure:
    """[RN(low), RN(high)]: rounding is monotone. An end x moves by at most max(u |x|, eta / 2); a point stays one."""
    return Enclosure(exact(round_to_nearest(value.low, form)), exact(round_to_nearest(value.high, form)))


def elementwise(rule: Callable[[Numbers], Enclosure], contributions: Sequence[NDArray[np.floating]]) -> Interval:
    """The rule applied to every element of arrays of one shape, one array per contribution; as a float64 interval."""
    columns = np.stack([x.astype(np.float64).reshape(-1) for x in contributions], axis=1)
    enclosures = [rule(column.tolist()) for column in columns]
    flat = Interval.enclosing([e.low for e in enclosures], [e.high for e in enclosures])
    shape = contributions[0].shape
    return Interval(flat.low.reshape(shape), flat.high.reshape(shape))


def _u(form: str) -> Fraction:
    return format_named(form).unit_roundoff


def _gamma(n: int, form: str) -> Fraction:
    if n * _u(form) >= 1:
        raise ValueError(f"gamma_{n} needs n u < 1: {n} terms are too many for {form}")
    return n * _u(form) / (1 - n * _u(form))


def _underflow(form: str, flush_to_zero: bool) -> Fraction:
    """The most that one product or quotient can lose beyond u times its size."""
    number = format_named(form)
    return number.least_normal if flush_to_zero else number.least_subnormal / 2


def _sum_error(n: int, size: Fraction, form: str, flush_to_zero: bool = False) -> Fraction:
    """(n - 1) u S. A flushed input or result t is a term -t added exactly: up to k = 2 n - 1 more, each below tiny."""
    if not flush_to_zero:
        return (n - 1) * _u(form) * size
    k = 2 * n - 1
    lost = k * format_named(form).least_normal
    return lost + (n - 1 + k) * _u(form) * (size + lost)


def _dot_error(n: int, size: Fraction, form: str) -> Fraction:
    gamma = _gamma(n, form)
    return gamma * size + n * _underflow(form, False) * (1 + gamma)


def _mean_of_scaled(values: list[Fraction], n: int, pre: Fraction, form: str, flush_to_zero: bool) -> Enclosure:
    """The sum of terms scaled to x / N with errors of ``pre`` in all."""
    size = _size(values) / n
    error = pre + _sum_error(len(values), size + pre, form, flush_to_zero)
    return _around(_total(values) / n, error, size, form)


def _terms(values: Numbers, form: str) -> list[Fraction]:
    if len(values) == 0:
        raise ValueError("no terms: there must be at least one")
    numbers = [exact(x) for x in values]
    for x in numbers:
        if not representable(x, form):
            raise ValueError(f"{float(x)} is not a value of {form}: round it first")
    return numbers


def _whole_terms(values: Numbers, form: str) -> tuple[list[int], int]:
    """The terms as whole numbers over a common denominator, and that.

    Of floats, which a norm may have a hundred thousand of, the significands are taken apart by NumPy: fractions take
    ten times as long.
    """
    if len(values) == 0 or not all(isinstance(value, float) for value in values):
        return _whole_numbers(_terms(values, form))
    x = np.array(values)
    strange = ~np.isfinite(x) | (round_array(x, form).astype(np.float64) != x)
    if strange.any():
        _terms(x[strange].tolist(), form)  # raises
    precision = format_named(form).precision
    significand, exponent = np.frexp(x)  # x = m * 2**exponent with |m| in [1/2, 1): m * 2**p is whole
    lowest = min(int(exponent.min()), precision)
    whole, shift = np.ldexp(significand, precision).astype(np.int64).tolist(), (exponent - lowest).tolist()
    return [m << k for m, k in zip(whole, shift, strict=True)], 1 << (precision - lowest)


def _divisor(world_size: int, form: str) -> int:
    if world_size < 1 or not representable(world_size, form):
        raise ValueError(f"world_size {world_size} must be at least 1 and a value of {form}")
    return world_size


def _whole_numbers(values: Iterable[Fraction]) -> tuple[list[int], int]:
    """The numerators over the least common denominator, and that: fractions of Python take twenty times as long."""
    ratios = [value.as_integer_ratio() for value in values]
    common = math.lcm(*(denominator for _, denominator in ratios))
    return [numerator * (common // denominator) for numerator, denominator in ratios], common


def _total(values: Iterable[Fraction]) -> Fraction:
    numerators, common = _whole_numbers(values)
    return Fraction(sum(numerators), common)


def _size(values: list[Fraction]) -> Fraction:
    return _total(abs(x) for x in values)


def _around(value: Fraction, error: Fraction, size: Fraction, form: str) -> Enclosure:
    """[value - error, value + error], where no partial result, of at most size + error, can overflow."""
    if size + error > format_named(form).largest:
        reach = round_to_nearest(size + error, "float64")
        raise ValueError(f"partial results may reach {reach}, and {form} ends at {float(format_named(form).largest)}")
    return Enclosure(value - error, value + error)


def _widened(low: Fraction, high: Fraction, error: Fraction, form: str) -> Enclosure:
    """[low - error, high + error] for a sum of non-negative terms, so cut at zero; checked for overflow."""
    return Enclosure(max(low - error, Fraction(0)), _around(high, error, high, form).high)
