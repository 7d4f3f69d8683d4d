"""Sums and means of intervals in a format, in any order: `oracle.lattice` for values that round.

Operands and results are intervals of values *of the format*. If values may be kept in a wider format (`in_either`),
they are intervals of values of either. If values may travel in another format, ``wire``, each may be rounded to it or
not, before and after each operation, and each operation may be done in either.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lockstep.oracle import lattice
from lockstep.oracle.averaging import ANY_WAY, AVERAGINGS
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.intervals import Interval, hull
from lockstep.oracle.lattice import Formats, Lattice
from lockstep.oracle.rounding import round_to_nearest


def as_interval(value: Lattice | Interval) -> Interval:
    """An exact value as an interval of one point."""
    return value if isinstance(value, Interval) else Interval.point(lattice.to_float(value))


def add(terms: Sequence[Interval], form: str, wire: str = "") -> Interval:
    """|computed - s| <= (n - 1) u S in every order, s in the sum of the intervals, S the sum of the largest |x_i|.

    u is that of the format or, if larger, of the ``wire``. Two terms are rounded once. (`oracle.bounds.sum_any_order`.)
    Raises Inexact if a partial sum may overflow and the total does not: then the result depends on the order.
    """
    forms = [FORMATS[name] for name in (form, wire or form)]
    total = terms[0]
    size = np.maximum(np.abs(terms[0].low), np.abs(terms[0].high))
    for term in terms[1:]:
        total = total + term
        size = np.nextafter(size + np.maximum(np.abs(term.low), np.abs(term.high)), np.inf)
    if len(terms) > 2:
        roundoff = max(float(each.unit_roundoff) for each in forms)
        error = np.nextafter(size * (len(terms) - 1) * roundoff * (1 + 2.0**-50), np.inf)
        if (size + error > min(float(each.largest) for each in forms)).any():
            raise lattice.Inexact(f"a sum of {len(terms)} terms may overflow {wire or form} on the way")
        total = total + Interval(-error, error)
    elif len(terms) < 2:
        return total
    return _rounded(total, form, wire)


def mean(terms: Sequence[Interval], averaging: str, form: str, wire: str = "") -> Interval:
    """The mean of one value per rank, taken in the given way (of `oracle.averaging.AVERAGINGS`, or any), in any order.

    The reciprocal of a 16-bit format may have been rounded to it, or to float32 (torch on CPU), and the product to
    float32 first. An implementation that divides may have multiplied by the latter reciprocal (torch on CUDA). One that
    multiplies may have divided: torch's DDP does, if a value lies in its bucket already (`mark_variable_ready_dense` in
    reducer.cpp).
    """
    if averaging == ANY_WAY:
        return hull(*(mean(terms, each, form, wire) for each in AVERAGINGS))
    through = "float64" if form == "float64" and not wire else "float32"
    reciprocals = {through, *([form] * (averaging == "multiply by reciprocal then sum")), *([form, wire] * bool(wire))}

    def spread(number: float) -> Interval:
        return Interval.point(np.full(terms[0].low.shape, number))

    def share(value: Interval) -> Interval:
        quotient = value.divide_by_positive(spread(float(len(terms))))
        products = [value * spread(round_to_nearest(1 / len(terms), name)) for name in reciprocals]
        return hull(*(_rounded(each.maybe_fused(through), form, wire) for each in (quotient, *products)))

    sent = [_rounded(term, form, wire) for term in terms] if wire else terms
    if averaging == "sum then divide":
        taken = share(add(sent, form, wire))
    else:
        taken = add([share(term) for term in sent], form, wire)
    return taken.round(form) if wire else taken


def _rounded(value: Interval, form: str, wire: str) -> Interval:
    """Rounded to the format; with a ``wire``: to either, to one after the other, or not at all."""
    if not wire:
        return value.round(form)
    for _ in ("rounded", "cast"):
        value = hull(value, value.round(form), value.round(wire))
    return value


def in_either(compute: Callable[[str], Interval], form: str, kept: str) -> Interval:
    """An enclosure of a result in a format, or in a wider one, in which it is kept and perhaps rounded to the first
    later.

    ``compute``: gives the result in the format of that name.
    """
    narrow = compute(form)
    if kept == form:
        return narrow
    wide = compute(kept)
    return hull(narrow, wide, wide.round(form))


def ranks_apart(value: Interval) -> list[Interval]:
    """An interval of shape (ranks, elements), rank by rank."""
    return [Interval(low, high) for low, high in zip(value.low, value.high, strict=True)]


def stacked(values: Sequence[Interval]) -> Interval:
    """The opposite of `ranks_apart`."""
    return Interval(np.stack([value.low for value in values]), np.stack([value.high for value in values]))


def coefficients_fit(coefficients: Lattice, form: Formats) -> Interval:
    """Coefficients as points; Inexact where the format does not hold one."""
    return Interval.point(lattice.to_float(lattice.representable(coefficients, form)))
