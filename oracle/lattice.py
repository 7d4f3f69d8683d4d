"""Exact arithmetic on integers times a power of two, with the proof that floating point does it exactly too.

Values are int64 multiples of 2**-FRACTION_BITS. Every operation checks a certificate: that each intermediate result
of the same operation in each element's format, in any order of summation, fused or not, is representable, so that no
rounding happens at all. Where it does not hold, `Inexact` is raised, and the data proves nothing bit for bit.

The rule behind it: k * 2**e is representable in p significand bits when the odd part of k is below 2**p. Terms that
are all multiples of 2**e and whose absolute values add up to at most 2**p * 2**e have only representable partial sums.
Values stay normal, so that flushing subnormals to zero changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from lockstep.oracle.averaging import ANY_WAY
from lockstep.oracle.formats import FORMATS, Format
from lockstep.oracle.rounding import representable as is_representable

FRACTION_BITS = 24
_UNIT = Fraction(1, 2**FRACTION_BITS)
_ROOM = 2.0**62

Lattice = npt.NDArray[np.int64]


class Inexact(ValueError):
    """The data does not stay exact through the operation named in the message."""


@dataclass(frozen=True)
class Formats:
    """The format of each element of an array, as arrays that broadcast against it.

    ``precision``: significand bits; ``most``: the largest magnitude; ``least``: the least normal value, on the lattice.
    """

    forms: tuple[Format, ...]
    precision: Lattice
    most: Lattice
    least: Lattice


@cache
def formats(names: tuple[str, ...], counts: tuple[int, ...]) -> Formats:
    """``counts[i]`` elements of format ``names[i]``, one kind after the other."""
    forms = tuple(FORMATS[name] for name in names)
    return Formats(
        forms,
        np.repeat(np.array([form.precision for form in forms], dtype=np.int64), counts),
        np.repeat(np.array([min(int(form.largest / _UNIT), 2**62) for form in forms], dtype=np.int64), counts),
        np.repeat(np.array([max(int(form.least_normal / _UNIT), 1) for form in forms], dtype=np.int64), counts),
    )


def from_integers(values: npt.ArrayLike) -> Lattice:
    """Integers as lattice values. Raises Inexact for those out of its range."""
    integers = np.asarray(values, dtype=np.int64)
    outside = np.abs(integers.astype(np.float64)) >= _ROOM / 2**FRACTION_BITS
    if outside.any():
        raise Inexact(f"{integers[outside].flat[0]} is out of the range of the lattice")
    return integers << FRACTION_BITS


def to_float(values: Lattice) -> npt.NDArray[np.float64]:
    """The values as float64; exact for every value that some format's certificate let through."""
    return np.ldexp(values.astype(np.float64), -FRACTION_BITS)


def representable(values: Lattice, form: Formats) -> Lattice:
    """The values themselves, if each is held by its format: odd part below 2**p, and within the normal range."""
    size, lowest = np.abs(values), values & -values
    ok = (size >> form.precision < lowest) & (size <= form.most) & (lowest >= form.least)
    if not (ok | (values == 0)).all():
        raise Inexact(f"{float(to_float(values)[~ok & (values != 0)][0])} is not representable in its format")
    return values


def add(terms: Sequence[Lattice] | Lattice, form: Formats) -> Lattice:
    """Sum over the first axis, exact in every order: sum |k| <= 2**p g, g the largest power of two in all terms."""
    stacked = np.asarray(terms)
    if not (np.abs(stacked).sum(axis=0, dtype=np.float64) < _ROOM).all():
        raise Inexact(f"a sum of {len(stacked)} terms leaves the range of the lattice")
    every_bit = np.bitwise_or.reduce(stacked, axis=0)
    common = np.maximum(every_bit & -every_bit, 1)
    total = np.abs(stacked).sum(axis=0)
    if not ((total // common <= 1 << form.precision) & (total <= form.most)).all():
        raise Inexact(f"a sum of {len(stacked)} terms does not stay exact")
    return representable(stacked.sum(axis=0), form)


def multiply(integers: npt.NDArray[np.int64], values: Lattice, form: Formats) -> Lattice:
    """Product of plain integers with lattice values."""
    sizes = np.abs(integers).astype(np.float64) * np.abs(values)
    if not (sizes < _ROOM).all():
        raise Inexact(f"a product of {sizes.max() / 2**FRACTION_BITS:g} leaves the range of the lattice")
    return representable(integers * values, form)


def divide(values: Lattice, divisor: int, form: Formats) -> Lattice:
    """Quotient by a positive integer, where it comes out even on the lattice."""
    if divisor == 1:
        return representable(values, form)
    quotients: Lattice = values // divisor
    if (quotients * divisor != values).any():
        raise Inexact(f"division by {divisor} is not exact")
    return representable(quotients, form)


@cache
def is_short(number: float, form: Format) -> bool:
    """True if a factor is on the lattice and in the format, so that there is data that stays exact under it."""
    return (Fraction(number) / _UNIT).denominator == 1 and is_representable(number, form.name)


def scale(values: Lattice, factor: float, form: Formats) -> Lattice:
    """Product with a number that every format holds: n / 2**k times the values."""
    if not all(is_short(factor, each) for each in set(form.forms)):
        raise Inexact(f"the factor {factor} is not a short sum of powers of two")
    numerator, denominator = float(factor).as_integer_ratio()
    if numerator == 1:
        return divide(values, denominator, form)
    product = multiply(np.asarray(numerator), values, form)
    return divide(product, denominator, form)


def mean(terms: Lattice, averaging: str, form: Formats) -> Lattice:
    """Mean over the first axis, exact for the given way of taking it. ``terms``: (ranks, elements).

    Whoever divides may have multiplied by the rounded reciprocal: torch on CUDA does, by a number.
    """
    ranks = len(terms)
    if averaging in ("sum then divide", ANY_WAY):
        summed_first = _share(add(terms, form), ranks, form)
        if averaging != ANY_WAY:
            return summed_first
    return add(_share(terms, ranks, form), form)


def _share(values: Lattice, ranks: int, form: Formats) -> Lattice:
    """x / N, by a division or a product with r, the format's rounding of 1/N: fl(x * r) = x / N is needed as well.

    For x = N * q that product is q * (1 + delta), delta = N * r - 1, before it is rounded: it rounds to q when
    sigma * |delta| < u, with sigma in [1, 2) the significand of q, and delta >= -u/2 where sigma = 1 (below a power of
    two floats are twice as dense; -u/2 itself is a tie, which goes to the power of two).
    """
    quotients = divide(values, ranks, form)
    for each in set(form.forms):
        if abs(delta := reciprocal_error(ranks, each)) > each.unit_roundoff / 2:
            sigma = 2 * np.frexp(np.abs(to_float(quotients[..., form.precision == each.precision])))[0]
            ok = sigma * float(abs(delta)) < float(each.unit_roundoff)
            if delta < 0:
                ok &= sigma != 1
            if not ok.all():
                raise Inexact(f"the rounded 1/{ranks} of {each.name} does not give every quotient exactly")
    return quotients


@cache
def reciprocal_error(ranks: int, form: Format) -> Fraction:
    """delta = N * fl(1/N) - 1, exactly. |delta| <= u/2 leaves every quotient exact."""
    rounded = np.asarray(1 / np.float64(ranks)).astype(form.numpy)
    return ranks * Fraction(float(rounded)) - 1
