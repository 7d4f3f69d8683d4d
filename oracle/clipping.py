"""Clipping by global norm: g <- g * min(1, max_norm / (norm + 1e-6)), as ``torch.nn.utils.clip_grad_norm_`` does it.

Implementations take the norm in different ways. Torch takes the norm of each parameter in its own dtype, then the norm
of these in the widest one. FSDP1, Megatron-LM and DeepSpeed take all of it in a wider format. The order of the sums is
open. Each rank may take the norm of its own part, and then the norm of these norms. So the norm is enclosed in an
interval. It is exact if the interval is a point:

    p = inf    the largest element
    p = 1      a sum that stays exact
    p = 2      squares that add up to a square on one rank, or a single element

The coefficient may be computed in the norm's format or in a wider one, such as Python's float. It may be a quotient, a
product with a reciprocal, or a divisor of the gradients. Gradients stay exact if the coefficient is 1 for certain, or
if their format holds the product.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from lockstep.oracle import bounds, enclosures, lattice
from lockstep.oracle.bounds import Enclosure
from lockstep.oracle.enclosures import as_interval
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.intervals import Interval, hull
from lockstep.oracle.lattice import Formats, Inexact, Lattice
from lockstep.oracle.rounding import exact, round_to_nearest, sqrt_below

EPSILON = 1e-6  # torch's constant; as a float64 that is rounded to the norm's format
# Floats by which a function may err. (MKL's square root: 1, measured; CUDA's and SLEEF's powf: at most 4, documented.)
SQRT_ULPS, POW_ULPS = 1, 4


def clip(
    gradients: Sequence[Lattice | Interval],
    forms: Sequence[Formats],
    max_norm: float,
    p: float,
    ranks: int = 1,
    kept: Sequence[str] = (),
) -> tuple[Enclosure, str, list[Lattice | Interval]]:
    """The norm, its format, and the clipped gradients of the parameters that have one.

    ``ranks``: the number of ranks over which a gradient may be spread. ``kept``: the formats in which gradients may be
    kept beside their own.
    """
    names = [form.forms[0].name for form in forms]
    if not gradients:
        return Enclosure(Fraction(0), Fraction(0)), "float32", []
    form = widest(names)
    narrowest = min(FORMATS[name].precision for name in names)  # bfloat16 with float16: float32 is wider, and the form
    wider = [each for each in ("float32", "float64") if FORMATS[each].precision > narrowest]
    totals = [_norm_of_all(gradients, names, form, p, ranks)]
    for each in wider:
        wide = _norm_of_all(gradients, [each] * len(names), each, p, ranks)
        totals += [wide, _held(wide, form)]
    total = Enclosure(min(each.low for each in totals), max(each.high for each in totals))
    factor = hull(*(coefficient(total, each, max_norm) for each in (form, *wider)))
    clipped = [
        times_kept(value, factor, each, name) for value, each, name in zip(gradients, forms, kept or names, strict=True)
    ]
    return total, form, clipped


def _norm_of_all(
    gradients: Sequence[Lattice | Interval], names: Sequence[str], form: str, p: float, ranks: int
) -> Enclosure:
    """The norm, each tensor's taken in the format named, and that of these norms in ``form``."""
    known = ranks == 1 or _is_exact_in_parts(gradients, {*names, form}, p)
    norms = [norm(value, name, p, known) for value, name in zip(gradients, names, strict=True)]
    return across(total_norm(norms, form, p, known), 1 if known else ranks, form, p)


def widest(names: Sequence[str]) -> str:
    """The format to which torch promotes: the widest, and float32 for float16 with bfloat16."""
    if len(set(names)) == 1:
        return names[0]
    return "float64" if "float64" in names else "float32"


def norm(value: Lattice | Interval, name: str, p: float, may_be_exact: bool = True) -> Enclosure:
    """The p-norm of one tensor in its format. 16-bit tensors are summed in float32 and rounded once (measured)."""
    if may_be_exact and not isinstance(value, Interval) and (known := _exact_norm(value, name, p)) is not None:
        return Enclosure(known, known)
    inside = as_interval(value)
    straddles = (inside.low <= 0) & (inside.high >= 0)
    least = np.where(straddles, 0.0, np.minimum(np.abs(inside.low), np.abs(inside.high))).reshape(-1).tolist()
    most = np.maximum(np.abs(inside.low), np.abs(inside.high)).reshape(-1).tolist()
    if not least:
        return Enclosure(Fraction(0), Fraction(0))
    # A computed norm never falls when an element grows: every rounding is monotone.
    points = ([Enclosure(exact(x), exact(x)) for x in xs] for xs in (least, most))
    low, high = (_norm_of_points(values, _accumulator(name), p) for values in points)
    return _held(Enclosure(low.low, high.high), name)


def _held(value: Enclosure, name: str) -> Enclosure:
    """The norm rounded to its format; Inexact where it may overflow, since whether it does is then open."""
    if value.high > FORMATS[name].largest:
        raise Inexact(f"a norm of {float(value.high)} may overflow {name}")
    return bounds.cast(value, name)


def _exact_norm(value: Lattice, name: str, p: float) -> Fraction | None:
    """The norm if no order of summation can round it and its format holds it; None otherwise, and for p = 3."""
    numbers = [exact(x) for x in np.abs(lattice.to_float(value)).reshape(-1).tolist()]
    powers = [x**2 if p == 2 else x for x in numbers]
    total = max(numbers, default=Fraction(0)) if p == math.inf else sum(powers, Fraction(0))
    root = sqrt_below(total) if p == 2 else total
    if p == 3 or (p == 2 and root * root != total) or not _adds_exactly(powers, name):
        return None
    return root if exact(round_to_nearest(root, name)) == root else None


def _adds_exactly(terms: Sequence[Fraction], name: str) -> bool:
    """True if sum |k_i| <= 2**p, for k_i the terms in units of the largest power of two that divides all."""
    form = FORMATS[name]
    unit = Fraction(1, math.lcm(*(x.denominator for x in terms))) if terms else Fraction(1)
    integers = [int(x / unit) for x in terms]
    common = math.gcd(*integers) & -math.gcd(*integers) if any(integers) else 1
    total = sum(integers)
    return total <= 2**form.precision * common and unit * common >= form.least_normal and unit * total <= form.largest


def total_norm(norms: Sequence[Enclosure], form: str, p: float, may_be_exact: bool = True) -> Enclosure:
    """The p-norm of the norms, in the widest format."""
    if may_be_exact and all(each.low == each.high for each in norms):
        values = [each.low for each in norms]
        if (known := _exact_norm(_on_lattice(values), form, p) if _fits(values) else None) is not None:
            return Enclosure(known, known)
    return _held(_norm_of_points(norms, _accumulator(form), p), form)


def _is_exact_in_parts(gradients: Sequence[Lattice | Interval], names: Iterable[str], p: float) -> bool:
    """True if no norm of some of the elements rounds, nor a norm of such norms: a sum of squares may be a square, and
    its parts none.
    """
    numbers: list[Fraction] = []
    for value in gradients:
        if isinstance(value, Interval):
            return False
        numbers += [exact(x) for x in np.abs(lattice.to_float(value)).reshape(-1).tolist() if x]
    if p == 3 or (p == 2 and len(numbers) > 1):
        return False
    return all(_adds_exactly([x**2 for x in numbers] if p == 2 else numbers, name) for name in names)


def across(total: Enclosure, ranks: int, form: str, p: float) -> Enclosure:
    """The norm if each rank takes that of its own part, and the norm of these is taken then.

    The bounds on rounding depend on the number of parts and on their sum, not on the size of each. 16-bit norms may be
    combined in their own format. Without overflow of the powers, a power of two changes no rounding.
    """
    if p == math.inf or (ranks == 1 and p != 3):  # in one part alone, the root of a square is the number itself
        return total
    scale = Fraction(2) ** max(math.floor(total.high).bit_length() - 4, 0)  # from below 16 no power overflows
    parts = [Enclosure(total.low / scale, total.high / scale), *[Enclosure(Fraction(0), Fraction(0))] * (ranks - 1)]
    levels = [_norm_of_points(parts, each, p) for each in {form, _accumulator(form)}]
    return _held(Enclosure(min(x.low for x in levels) * scale, max(x.high for x in levels) * scale), form)


def _accumulator(form: str) -> str:
    return form if FORMATS[form].bytes > 2 else "float32"


def _fits(values: Sequence[Fraction]) -> bool:
    scaled = [value * 2**lattice.FRACTION_BITS for value in values]
    return all(value.denominator == 1 and value < 2**53 for value in scaled)


def _on_lattice(values: Sequence[Fraction]) -> Lattice:
    return np.array([int(value * 2**lattice.FRACTION_BITS) for value in values], dtype=np.int64)


def _norm_of_points(values: Sequence[Enclosure], form: str, p: float) -> Enclosure:
    """The p-norm of values >= 0 that are each enclosed, in a format of 32 or 64 bits."""
    lows, highs = [value.low for value in values], [value.high for value in values]
    if p == math.inf:
        return Enclosure(max(lows), max(highs))
    if p == 1:
        return Enclosure(max(bounds.sum_any_order(lows, form).low, Fraction(0)), bounds.sum_any_order(highs, form).high)
    if p == 2:
        return bounds.norm_of_norms(values, form, SQRT_ULPS)
    u = FORMATS[form].unit_roundoff
    # Each cube errs by POW_ULPS floats of at most 2 u, or by underflow; the sum by (n - 1) u of itself.
    slack = (1 + 2 * POW_ULPS * u) * (1 + len(values) * u) - 1
    lost = len(values) * FORMATS[form].least_normal
    cubes = Enclosure(
        max(sum((x**3 for x in lows), Fraction(0)) * (1 - slack) - lost, Fraction(0)),
        sum((x**3 for x in highs), Fraction(0)) * (1 + slack) + (lost if any(highs) else 0),
    )
    if cubes.high > FORMATS[form].largest:
        raise Inexact(f"cubes that add up to {float(cubes.high):g} may overflow {form}")
    return Enclosure(_cube_root(cubes.low, form, -1), _cube_root(cubes.high, form, 1))


def _cube_root(value: Fraction, form: str, side: int) -> Fraction:
    """A bound on the computed power x**RN(1/3), below or above it (``side`` -1 or 1).

    x**e = x**(1/3) * exp((e - 1/3) ln x), |exp(t) - 1| <= 2 |t| for |t| <= 1, and a float64 logarithm is good to 1 %.
    """
    if value == 0:
        return Fraction(0)
    root = _integer_cube_root(value.numerator * value.denominator**2 << 3 * 128)  # cbrt(a / b) = cbrt(a b**2) / b
    below, above = Fraction(root, value.denominator << 128), Fraction(root + 1, value.denominator << 128)
    logarithm = math.log(value.numerator) - math.log(value.denominator)
    off = abs(exact(round_to_nearest(Fraction(1, 3), form)) - Fraction(1, 3))
    slack = 2 * off * exact(abs(logarithm) * 1.01 + 0.01) + 2 * POW_ULPS * FORMATS[form].unit_roundoff
    return below * (1 - slack) if side < 0 else above * (1 + slack)


def _integer_cube_root(number: int) -> int:
    """floor(cbrt(n)), by Newton's method from above."""
    x = 1 << -(-number.bit_length() // 3)
    while True:
        y = (2 * x + number // (x * x)) // 3
        if y >= x:
            return x
        x = y


def coefficient(total: Enclosure, form: str, max_norm: float) -> Interval:
    """min(1, max_norm / (norm + 1e-6)), by a division, a product with the rounded reciprocal (torch), or inverted.

    The inverted coefficient divides gradients, or its reciprocal multiplies them (DeepSpeed). 16-bit results are
    rounded to float32 first, so twice. A float32 norm from 32 absorbs the 1e-6. A float64 norm keeps it, and so does a
    norm of float32 gradients that is taken in float64, or read with ``item()``.
    """
    if max_norm == float("inf"):  # by which nobody can multiply 0, the reciprocal of a large norm
        return Interval.point([1.0])
    inside = Interval.enclosing([total.low], [total.high])
    # Of 16-bit norms, torch on CPU rounds what is added to their format, and CUDA does not. (Measured; read.)
    epsilon = hull(*(Interval.point([round_to_nearest(EPSILON, name)]) for name in (form, _scalar_format(form))))
    divisor = (inside + epsilon).maybe_fused(_scalar_format(form)).maybe_fused(form)
    ones = Interval.point([1.0])
    through = _scalar_format(form)
    most = Interval.point([max_norm]).maybe_fused(through)  # rounded where it is, or becomes, a tensor
    direct = most.divide_by_positive(divisor).maybe_fused(through).round(form)
    reciprocal = ones.divide_by_positive(divisor).round(form)
    quotient = divisor.divide_by_positive(most).maybe_fused(through).round(form)
    # One below 1, which may come down to zero, clips nothing.
    inverted = ones.divide_by_positive(Interval(np.maximum(quotient.low, 1.0), np.maximum(quotient.high, 1.0)))
    product = (reciprocal * most.round(through)).maybe_fused(through).round(form)
    any_way = hull(direct, product, inverted.maybe_fused(form))
    return Interval(np.minimum(any_way.low, 1.0), np.minimum(any_way.high, 1.0))


def _scalar_format(form: str) -> str:
    """The format in which torch combines a Python number with a tensor."""
    return "float64" if form == "float64" else "float32"


def times_kept(value: Lattice | Interval, factor: Interval, form: Formats, kept: str) -> Lattice | Interval:
    """c g in the gradient's format, or in the format in which it may be kept; exact if both are."""
    product, name = times(value, factor, form), form.forms[0].name
    if kept == name:
        return product
    wide = times(value, factor, lattice.formats((kept,), (as_interval(value).low.size,)))
    if not isinstance(product, Interval) and not isinstance(wide, Interval) and np.array_equal(product, wide):
        return product
    return enclosures.in_either(lambda each: as_interval(product if each == name else wide), name, kept)


def times(value: Lattice | Interval, factor: Interval, form: Formats) -> Lattice | Interval:
    """RN(c g), c rounded to the gradient's format or not; exact where that is certain."""
    if factor.low[0] == 1:
        return value
    # Zero times a negative number is -0.0, which the lattice does not have.
    if not isinstance(value, Interval) and factor.low[0] == factor.high[0] != 0:
        try:
            return lattice.scale(value, float(factor.low[0]), form)
        except Inexact:
            pass
    name, inside = form.forms[0].name, as_interval(value)
    wide = hull(factor, factor.round(name)) if FORMATS[name].bytes < 8 else factor
    shape = inside.low.shape
    spread = Interval(np.broadcast_to(wide.low, shape), np.broadcast_to(wide.high, shape))
    product = inside * spread
    rounded = (product if FORMATS[name].bytes > 2 else product.maybe_fused("float32")).round(name)
    return rounded if (known := _one_each(rounded, form)) is None or _vanishes(value, known) else known


def _vanishes(value: Lattice | Interval, product: Lattice) -> bool:
    """True if a product is zero though its factor may not be. It then has either sign, and the lattice has only one."""
    return bool(np.any((product == 0) & (isinstance(value, Interval) | (as_interval(value).low != 0))))


def _one_each(inside: Interval, form: Formats) -> Lattice | None:
    """The values, where each is the only one that rounding has left, and the lattice has it."""
    scaled = np.ldexp(inside.low, lattice.FRACTION_BITS)
    known = (inside.low == inside.high) & (scaled == np.rint(scaled)) & (np.abs(scaled) < 2.0**53)
    if not known.all():
        return None
    try:
        return lattice.representable(scaled.astype(np.int64), form)
    except Inexact:
        return None
