"""What the lattice certifies is carried out in the formats themselves, in every order and bracketing."""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lockstep.oracle import lattice
from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.formats import FORMATS, Format
from lockstep.oracle.lattice import FRACTION_BITS, Formats, Inexact, Lattice
from lockstep.oracle.rounding import representable, rounded_reciprocal
from lockstep.oracle.tests.examples import examples

RECIPROCAL = AVERAGINGS[2]
Tree = Any  # an index of a term, or a pair of trees


def one(name: str, count: int = 1) -> Formats:
    """``count`` elements of one format."""
    return lattice.formats((name,), (count,))


def exactly(value: int) -> Fraction:
    """The number that a lattice value stands for."""
    return Fraction(value, 2**FRACTION_BITS)


def in_format(value: Fraction, name: str) -> Any:
    """The number in its format; ``value`` must be representable."""
    with np.errstate(over="ignore"):
        number = np.asarray(float(value)).astype(FORMATS[name].numpy)[()]
    assert Fraction(float(number)) == value
    return number


@cache
def bracketings(first: int, last: int) -> tuple[Tree, ...]:
    """All ways to put brackets around the terms first .. last - 1."""
    if last - first == 1:
        return (first,)
    return tuple(
        (left, right)
        for cut in range(first + 1, last)
        for left in bracketings(first, cut)
        for right in bracketings(cut, last)
    )


def evaluate(tree: Tree, terms: tuple[Any, ...]) -> Any:
    """The tree's sum, rounded to the terms' format at each node."""
    if isinstance(tree, int):
        return terms[tree]
    with np.errstate(over="ignore", invalid="ignore"):
        return evaluate(tree[0], terms) + evaluate(tree[1], terms)


def all_sums(terms: list[Any]) -> Iterator[Any]:
    """The sum of the terms in every order and every bracketing."""
    for order in permutations(terms):
        for tree in bracketings(0, len(terms)):
            yield evaluate(tree, order)


@st.composite
def terms_of(draw: st.DrawFn, name: str) -> list[int]:
    """Up to four lattice values of a format: few bits or many, of one size or several, near its largest value too."""
    form = FORMATS[name]
    top = min(62, FRACTION_BITS + form.emax + 1)  # terms below 2**62 units
    unit = draw(st.integers(max(0, FRACTION_BITS + form.emin), top - form.precision))
    size = st.integers(0, form.precision).flatmap(lambda bits: st.integers(2**bits // 2, 2**bits))
    values = draw(st.lists(st.tuples(size, st.sampled_from((1, -1))), min_size=1, max_size=4))
    terms = [sign * (k << unit) for k, sign in values]
    assume(all(representable(exactly(term), name) for term in terms))
    return terms


@pytest.mark.parametrize("name", FORMATS)
def test_a_certified_sum_is_exact_in_every_order_and_bracketing(name: str) -> None:
    certified = 0

    @given(terms_of(name))
    @settings(max_examples=200, deadline=None, derandomize=True)
    def check(terms: list[int]) -> None:
        nonlocal certified
        try:
            (total,) = lattice.add(np.array(terms, dtype=np.int64)[:, None], one(name))
        except Inexact:
            return
        certified += 1
        assert int(total) == sum(terms)
        for computed in all_sums([in_format(exactly(term), name) for term in terms]):
            assert float(computed) == exactly(sum(terms))

    check()
    assert certified > 50


@pytest.mark.parametrize("name", FORMATS)
def test_a_sum_one_beyond_the_precision_is_refused_and_does_round(name: str) -> None:
    unit = 2 ** max(0, FRACTION_BITS + FORMATS[name].emin)  # the least normal number, or the least on the lattice
    most = unit * 2 ** FORMATS[name].precision
    assert float(in_format(exactly(most), name) + in_format(exactly(unit), name)) == exactly(most)
    with pytest.raises(Inexact):
        lattice.add(np.array([[most], [unit]]), one(name))
    with pytest.raises(Inexact):  # the total is representable, the sum of the first two terms is not
        lattice.add(np.array([[most], [unit], [-unit]]), one(name))
    assert lattice.add(np.array([[most // 2], [unit], [-unit]]), one(name)) == most // 2


def test_a_sum_whose_parts_may_overflow_is_refused() -> None:
    terms = lattice.from_integers([[40000], [25536], [-25536]])
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(40000) + np.float16(25536))
    with pytest.raises(Inexact):
        lattice.add(terms, one("float16"))


@pytest.mark.parametrize("name", FORMATS)
def test_representable_lets_through_exactly_what_the_format_holds_as_normal_values(name: str) -> None:
    form = FORMATS[name]

    @given(st.integers(1, 2**12).flatmap(lambda k: st.integers(0, 50).map(lambda e: k << e)), st.sampled_from((1, -1)))
    @settings(max_examples=200, deadline=None, database=None)
    def check(size: int, sign: int) -> None:
        value = exactly(size)
        lowest_bit = exactly(size & -size)
        held = representable(value, name) and lowest_bit >= form.least_normal
        if held:
            assert lattice.representable(np.array([sign * size]), one(name)) == sign * size
        else:
            with pytest.raises(Inexact, match=re.escape(str(float(sign * value)))):
                lattice.representable(np.array([sign * size]), one(name))

    check()


def test_representable_judges_every_element_by_its_own_format() -> None:
    both = lattice.formats(("bfloat16", "float32"), (1, 1))
    lattice.representable(lattice.from_integers([256, 257]), both)
    with pytest.raises(Inexact, match="257"):
        lattice.representable(lattice.from_integers([257, 257]), both)


@given(st.integers(-(2**40), 2**40), st.integers(1, 12))
@settings(deadline=None)
def test_a_division_is_the_exact_quotient_or_is_refused(value: int, divisor: int) -> None:
    try:
        (quotient,) = lattice.divide(np.array([value]), divisor, one("float64"))
    except Inexact:
        assert value % divisor
    else:
        assert exactly(int(quotient)) * divisor == exactly(value)


@given(st.integers(-(2**30), 2**30), st.integers(-(2**30), 2**30), st.sampled_from(("float32", "float64")))
@settings(deadline=None)
def test_a_product_is_exact_in_its_format_or_is_refused(integer: int, value: int, name: str) -> None:
    try:
        (product,) = lattice.multiply(np.array([integer]), lattice.from_integers([value]), one(name))
    except Inexact:
        assert abs(integer * value) >= 2 ** (62 - FRACTION_BITS) or not representable(Fraction(integer * value), name)
    else:
        assert int(product) == integer * value << FRACTION_BITS
        if representable(Fraction(integer), name) and representable(Fraction(value), name):
            with np.errstate(over="ignore"):
                computed = in_format(Fraction(integer), name) * in_format(Fraction(value), name)
            assert float(computed) == integer * value


def significands(name: str) -> list[int]:
    """Integers with at most p bits: all of them for 16 bits; else those at both ends and some between."""
    p = FORMATS[name].precision
    if p < 16:
        return list(range(1, 2**p))
    generator = np.random.default_rng(0)
    between = generator.integers(1, 2 ** (p - 6), 300, dtype=np.int64)
    return [*range(1, 200), *(2 ** (p - 6) - k for k in range(1, 200)), *map(int, between)]


def held(number: int, form: Format) -> bool:
    """True if the format holds a positive integer: at most p bits from its first to its last 1, and not too large."""
    return (number // (number & -number)).bit_length() <= form.precision and number <= form.largest


@pytest.mark.parametrize("averaging", AVERAGINGS)
@pytest.mark.parametrize("name", FORMATS)
def test_ranks_are_divided_by_just_where_the_rounded_reciprocal_gives_every_quotient(name: str, averaging: str) -> None:
    """x = N q, each product fl(x * fl(1 / N)) computed in the format itself, for N = 1 .. 64 (torch on CUDA)."""
    form = FORMATS[name]
    traps = 0
    for ranks in range(1, 65):
        quotients = np.array([q for q in significands(name) if held(q * ranks, form)], dtype=np.int64)
        reciprocal = in_format(rounded_reciprocal(ranks, name), name)
        exact = ((quotients * ranks).astype(form.numpy) * reciprocal).astype(np.float64) == quotients
        assert averages(ranks, quotients[exact], name, averaging)
        for q in quotients[~exact]:
            assert not averages(ranks, np.array([q]), name, averaging), (ranks, q)
        traps += not exact.all()
    assert traps >= (name != "float64")  # 49 is float64's only one, and seldom strikes


def averages(ranks: int, quotients: Lattice, name: str, averaging: str) -> bool:
    """True if the lattice lets one rank's N q, beside zeros, be averaged."""
    terms: Lattice = np.zeros((ranks, len(quotients)), dtype=np.int64)
    scaled = quotients if name == "float64" else lattice.from_integers(quotients)  # 2**-24 of it changes no rounding
    terms[0] = scaled * ranks
    try:
        result = lattice.mean(terms, averaging, one(name, len(quotients)))
    except Inexact:
        return False
    assert (result == scaled).all()
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_the_reciprocal_is_rounded_once(name: str) -> None:
    for ranks in range(1, 1025):
        assert lattice.reciprocal_error(ranks, FORMATS[name]) == ranks * rounded_reciprocal(ranks, name) - 1


# Where some quotient may be inexact: |N * fl(1/N) - 1| > u/2 (computed apart from this code, in Fractions).
TRAPS = {
    "float32": (7, 13, 14, 15, 26, 28, 30, 41, 47, 51, 52, 55, 56, 60, 61, 63),
    "float64": (49,),
    "bfloat16": (13, 15, 26, 30, 43, 51, 52, 53, 60, 61),
    "float16": (11, 22, 27, 41, 44, 47, 49, 53, 54, 55, 61),
}


@pytest.mark.parametrize("name", TRAPS)
def test_the_world_sizes_at_which_the_reciprocal_is_a_trap(name: str) -> None:
    half = FORMATS[name].unit_roundoff / 2
    found = tuple(n for n in range(1, 65) if abs(lattice.reciprocal_error(n, FORMATS[name])) > half)
    assert found == TRAPS[name]


@given(
    st.integers(1, 4),
    st.sampled_from(list(FORMATS)),
    st.sampled_from(AVERAGINGS),
    st.sampled_from((1, 3, 15, 105)),
    st.data(),
)
@examples(200)
def test_a_certified_mean_is_exact_in_every_order_and_bracketing(
    ranks: int, name: str, averaging: str, multiple: int, data: st.DataObject
) -> None:
    ks = data.draw(st.lists(st.integers(-40, 40), min_size=ranks, max_size=ranks))
    terms = [Fraction(multiple * k) for k in ks]
    assume(all(representable(term, name) for term in terms))
    try:
        (mean,) = lattice.mean(lattice.from_integers([[int(term)] for term in terms]), averaging, one(name))
    except Inexact:
        return
    assert exactly(int(mean)) == sum(terms) / ranks
    numbers = [in_format(term, name) for term in terms]
    count, reciprocal = in_format(Fraction(ranks), name), in_format(rounded_reciprocal(ranks, name), name)
    if averaging == "sum then divide":
        results = [share for total in all_sums(numbers) for share in (total / count, total * reciprocal)]
    else:
        results = list(all_sums([number * reciprocal for number in numbers]))
        results += all_sums([number / count for number in numbers])
    assert {Fraction(float(result)) for result in results} == {exactly(int(mean))}


def test_lattice_values_become_floats_without_a_loss() -> None:
    values = np.array([1, -3, 2**52 + 1, 5 << 40], dtype=np.int64)
    assert [Fraction(value) for value in lattice.to_float(values)] == [exactly(int(value)) for value in values]


def test_integers_out_of_range_are_refused() -> None:
    assert lattice.from_integers([2**37])[0] == 2 ** (37 + lattice.FRACTION_BITS)
    with pytest.raises(Inexact):
        lattice.from_integers([2**39])
