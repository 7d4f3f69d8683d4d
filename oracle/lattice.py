"""Exact arithmetic on integers times a power of two, with the proof that floating point does it exactly too.

Values are int64 multiples of 2**-FRACTION_BITS. Every operation checks a certificate: that each intermediate result
of the same operation in the given format, in any order of summation, fused or not, is representable, so that no
rounding happens at all. Where it does not hold, `Inexact` is raised, and the data proves nothing bit for bit.

The rule behind it: k * 2**e is representable in p significand bits when the odd part of k is below 2**p. Terms that
are all multiples of 2**e and whose absolute values add up to at most 2**p * 2**e have only representable partial sums.
Exponents here stay far from the ends of every format (|value| < 2**38, unit 2**-24), except float16's.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from oracle.formats import Format

FRACTION_BITS = 24
_ROOM = 2.0**62

Lattice = npt.NDArray[np.int64]


class Inexact(ValueError):
    """The data does not stay exact through the operation named in the message."""


def from_integers(values: npt.ArrayLike) -> Lattice:
    """Integers as lattice values."""
    return np.asarray(values, dtype=np.int64) << FRACTION_BITS


def to_float(values: Lattice) -> npt.NDArray[np.float64]:
    """The values as float64; exact for every value that some format's certificate let through."""
    return np.ldexp(values.astype(np.float64), -FRACTION_BITS)


def _lowest_bit(values: Lattice) -> Lattice:
    """The largest power of two that divides each value; 1 for zero."""
    return np.where(values == 0, 1, values & -values)


def representable(values: Lattice, form: Format) -> Lattice:
    """The values themselves, if the format holds each: odd part below 2**p, and within the format's range."""
    size = np.abs(values)
    ok = size // _lowest_bit(values) < 2**form.precision
    ok &= to_float(size) <= float(min(form.largest, Fraction(2**38)))
    ok &= (values == 0) | (np.ldexp(_lowest_bit(values).astype(np.float64), -FRACTION_BITS) >= float(form.least_normal))
    if not ok.all():
        raise Inexact(f"{to_float(values[~ok])[0]!r} is not representable in {form.name}")
    return values


def add(terms: Lattice, form: Format) -> Lattice:
    """Sum over the first axis, exact in every order: sum |k| / gcd-power-of-two <= 2**p. ``terms``: (terms, elements)."""
    weight = np.abs(terms).sum(axis=0, dtype=np.float64)
    common = _lowest_bit(np.bitwise_or.reduce(terms, axis=0))
    if not (weight <= np.minimum(common * 2.0**form.precision, _ROOM)).all():
        raise Inexact(f"a sum of {len(terms)} terms does not stay exact in {form.name}")
    return representable(terms.sum(axis=0), form)


def multiply(integers: npt.ArrayLike, values: Lattice, form: Format) -> Lattice:
    """Product of plain integers with lattice values."""
    factors = np.asarray(integers, dtype=np.int64)
    if not (np.abs(factors).astype(np.float64) * np.abs(values) < _ROOM).all():
        raise Inexact("a product leaves the lattice's range")
    return representable(factors * values, form)


def divide(values: Lattice, divisor: int, form: Format) -> Lattice:
    """Quotient by a positive integer, where it comes out even on the lattice."""
    if (values % divisor).any():
        raise Inexact(f"division by {divisor} is not exact")
    return representable(values // divisor, form)


def mean(terms: Lattice, averaging: str, form: Format) -> Lattice:
    """Mean over the first axis, exact for the given way of taking it. ``terms``: (ranks, elements).

    With N ranks and r = the format's rounding of 1/N, "multiply by reciprocal then sum" needs fl(x * r) = x / N for
    each term x. For x = N * q that product is q * (1 + delta), delta = N * r - 1, before it is rounded: it rounds to q
    when sigma * |delta| < u, with sigma in [1, 2) the significand of q, and delta > -u/2 where sigma = 1.
    """
    ranks = len(terms)
    if averaging == "sum then divide":
        return divide(add(terms, form), ranks, form)
    quotients = divide(terms, ranks, form)
    if averaging == "multiply by reciprocal then sum":
        delta = reciprocal_error(ranks, form)
        sigma = 2 * np.frexp(np.abs(to_float(quotients)))[0]
        ok = sigma * float(abs(delta)) < float(form.unit_roundoff)
        if delta <= -form.unit_roundoff / 2:
            ok &= sigma != 1
        if not ok.all():
            raise Inexact(f"the rounded 1/{ranks} of {form.name} does not give every quotient exactly")
    return add(quotients, form)


def reciprocal_error(ranks: int, form: Format) -> Fraction:
    """delta = N * fl(1/N) - 1, exactly."""
    rounded = np.asarray(1 / np.float64(ranks)).astype(form.numpy)
    return ranks * Fraction(float(rounded)) - 1
