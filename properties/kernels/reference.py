"""The expected results of kernels: float32 arithmetic with each operation rounded, and one rounding to the stored
dtype.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.bounds import Enclosure, norm
from lockstep.oracle.clipping import coefficient
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.intervals import Interval, hull
from lockstep.oracle.rounding import half_ulp, round_array
from lockstep.properties.kernels.case import Case, Tensor
from lockstep.properties.kernels.values import DTYPES, elements

Array = NDArray[Any]


def values(spec: Tensor, kind: str) -> Array:
    """A tensor's elements in row-major order."""
    return elements(kind, spec.count, spec.dtype, spec.seed)


def transformed(x: Array, dtype: str, divisor: float, scale: float, coefficient: float | None) -> Array:
    """RN(RN32(RN32(RN32(x / divisor) * scale) * coefficient)), with the outer rounding to ``dtype``."""
    with np.errstate(all="ignore"):
        y = x.astype(np.float32) / np.float32(divisor)
        y = y * np.float32(scale)
        if coefficient is not None:
            y = y * np.float32(coefficient)
        return round_array(y, dtype)


def packed(case: Case) -> Array:
    """The bucket for tensors of one dtype; only bits are moved."""
    parts = [values(tensor, case.kind) for tensor in case.tensors]
    return np.concatenate(parts) if parts else np.zeros(0, DTYPES[case.bucket.dtype])


def converted(case: Case) -> Array:
    """The bucket with cast and scale."""
    parts = [
        transformed(values(t, case.kind), case.bucket.dtype, 1.0, case.scale, case.coefficient) for t in case.tensors
    ]
    return np.concatenate(parts) if parts else np.zeros(0, DTYPES[case.bucket.dtype])


def unpacked(case: Case) -> list[Array]:
    """The tensors with average and cast."""
    ends = np.cumsum([0, *(tensor.count for tensor in case.tensors)])
    bucket = values(case.bucket, case.kind)
    return [
        transformed(bucket[begin:end], t.dtype, case.divisor, case.scale, case.coefficient)
        for t, begin, end in zip(case.tensors, ends[:-1], ends[1:], strict=True)
    ]


def scaled(case: Case, coefficient: float | None) -> list[Array]:
    """The tensors after scaling in place."""
    return [transformed(values(t, case.kind), t.dtype, case.divisor, case.scale, coefficient) for t in case.tensors]


def averages(case: Case) -> Array:
    """The elements of which the norm is taken: all of them, averaged and scaled, in float32."""
    parts = [transformed(values(t, case.kind), "float32", case.divisor, case.scale, None) for t in case.tensors]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def norm_enclosure(numbers: Array) -> Enclosure:
    """Enclose the norm of float32 values before its last rounding, in any order, fused or not, at any magnitude.

    A power of two is factored out first, so that squares in the bound stay in range, as they must in the kernel. Values
    that then fall below float32 are rounded. The bound's allowance for losses between values of about one is much
    larger.
    """
    x = numbers.astype(np.float64)
    exponent = int(np.frexp(np.abs(x).max(initial=0.0))[1])
    kept = round_array(np.ldexp(x, -exponent), "float32")
    if not kept.any():
        return Enclosure(Fraction(0), Fraction(0))
    found = _norm_of(kept.tobytes())
    return Enclosure(found.low * Fraction(2) ** exponent, found.high * Fraction(2) ** exponent)


@lru_cache(maxsize=8)  # a law needs the same values several times
def _norm_of(float32s: bytes) -> Enclosure:
    return norm(np.frombuffer(float32s, np.float32).astype(np.float64).tolist(), "float32")


def coefficient_of(norm32: float, max_norm: float) -> float:
    """min(1, RN(max_norm / RN(norm + 1e-6))) in float32; NaN if the norm is NaN, as in torch."""
    with np.errstate(all="ignore"):
        below = np.float32(norm32) + np.float32(1e-6)
        return float(np.minimum(np.float32(1), np.float32(max_norm) / below))


def coefficients(norms: Enclosure, max_norm: float) -> Interval:
    """Enclose min(1, max_norm / (norm + 1e-6)) for computation in float32 or float64 in any usual way.

    The ways are a quotient, a product with a rounded reciprocal (torch), and the inverse of the divisor of gradients.
    """
    return hull(*(coefficient(norms, form, max_norm) for form in ("float32", "float64")))


def before_rounding(norm32: float, numbers: Array) -> Enclosure:
    """The norms that round to this float32 or to infinity. A coefficient may be computed from the unrounded norm."""
    if np.isinf(norm32):
        return Enclosure(FORMATS["float32"].largest, norm_enclosure(numbers).high)
    value, half = Fraction(norm32), half_ulp(Fraction(norm32), "float32")
    return Enclosure(max(value - half, Fraction(0)), value + half)


def clipped(case: Case, factor: Interval) -> list[Interval]:
    """The tensors, averaged and scaled as in `scaled`, and multiplied by a number in the interval.

    They may also be divided by its inverse. The factor may have any precision, so if it is not 1, the last bits are not
    determined.
    """
    found = []
    for tensor in case.tensors:
        x = transformed(values(tensor, case.kind), "float32", case.divisor, case.scale, None).astype(np.float64)
        spread = Interval(np.broadcast_to(factor.low, x.shape), np.broadcast_to(factor.high, x.shape))
        found.append((Interval.point(x) * spread).maybe_fused("float32").round(tensor.dtype))
    return found


def same(actual: bytes, expected: Array, numbers: bool) -> str:
    """Empty if the bits agree; else the first element that differs, in words. ``numbers``: all NaN are equal."""
    got = np.frombuffer(actual, dtype=expected.dtype)
    if len(got) != expected.size:
        return f"{len(got)} elements, and must be {expected.size}"
    words = f"u{expected.dtype.itemsize}"
    wrong = got.view(words) != expected.view(words)
    if numbers:
        wrong &= ~(np.isnan(got.astype(np.float32)) & np.isnan(expected.astype(np.float32)))
    if not wrong.any():
        return ""
    first = int(np.flatnonzero(wrong)[0])
    return f"element {first} is {got[first]}, and must be {expected[first]} ({wrong.sum()} of {wrong.size} are wrong)"
