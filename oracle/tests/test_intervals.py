"""Interval operations checked against the exact result of every choice of members, in Fractions."""

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.intervals import Interval, floats_inside, hull
from lockstep.oracle.rounding import round_to_nearest, sqrt_above, sqrt_below
from lockstep.oracle.tests.examples import examples

moderate = st.floats(-1e100, 1e100)
pairs = st.tuples(moderate, moderate).map(sorted)


def interval(ends: Sequence[float]) -> Interval:
    return Interval(np.array([ends[0]]), np.array([ends[1]]))


def holds(result: Interval, value: Fraction) -> bool:
    low, high = result.low[0], result.high[0]  # infinite where the result overflows
    return (low == -np.inf or Fraction(low) <= value) and (high == np.inf or value <= Fraction(high))


@given(pairs, pairs, st.floats(0, 1), st.floats(0, 1))
@examples(100)
def test_sums_differences_products_and_squares_hold_every_exact_result(
    x: list[float], y: list[float], s: float, t: float
) -> None:
    a, b = interval(x), interval(y)
    inner_x, inner_y = x[0] * (1 - s) + x[1] * s, y[0] * (1 - t) + y[1] * t
    members_x = [Fraction(v) for v in (*x, min(max(inner_x, x[0]), x[1]))]
    members_y = [Fraction(v) for v in (*y, min(max(inner_y, y[0]), y[1]))]
    for u, v in itertools.product(members_x, members_y):
        assert holds(a + b, u + v)
        assert holds(a - b, u - v)
        assert holds(a * b, u * v)
        assert holds(a.square(), u * u)
        assert holds(-a, -u)
        assert holds(hull(a, b), u)
        assert holds(hull(a, b), v)
        if y[0] > 0:
            assert holds(a.divide_by_positive(b), u / v)


@given(st.tuples(st.floats(0, 1e100), st.floats(0, 1e100)).map(sorted))
@examples(200)
def test_square_roots_hold_the_roots_of_both_ends(x: list[float]) -> None:
    root = interval(x).sqrt()
    assert Fraction(root.low[0]) <= sqrt_below(Fraction(x[0]))
    assert sqrt_above(Fraction(x[1])) <= Fraction(root.high[0])


@given(pairs, st.sampled_from(list(FORMATS)), st.floats(0, 1))
@examples(300)
def test_the_rounding_of_every_member_lies_between_the_rounded_ends(x: list[float], form: str, t: float) -> None:
    member = min(max(x[0] * (1 - t) + x[1] * t, x[0]), x[1])
    rounded = interval(x).round(form)
    assert rounded.contains([round_to_nearest(member, form)]).all()
    either = interval(x).maybe_fused(form)
    assert either.contains([round_to_nearest(member, form)]).all()
    assert either.contains([member]).all()


def test_a_known_value_rounds_to_a_single_float_and_one_ulp_more_to_three() -> None:
    for form in ("float32", "float16", "bfloat16"):
        x = Interval.point([1 / 3]).round(form)
        assert x.low == x.high == round_to_nearest(Fraction(1 / 3), form)
        assert floats_inside(x, form) == 1
        assert floats_inside(x.round(form, ulps=1), form) == 3


def test_the_floats_inside_are_counted_through_zero_and_subnormals() -> None:
    least = float(FORMATS["bfloat16"].least_subnormal)
    assert floats_inside(interval([-least, least]), "bfloat16") == 3
    everything = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    largest = float(FORMATS["bfloat16"].largest)
    with np.errstate(invalid="ignore"):
        distinct = np.unique(everything[np.isfinite(everything)].astype(np.float64))
    assert floats_inside(interval([-largest, largest]), "bfloat16") == len(distinct)


def test_squaring_is_sharper_than_multiplying_by_itself() -> None:
    x = interval([-1.0, 2.0])
    assert x.square().low == 0
    assert (x * x).low <= -2


def test_rationals_get_the_smallest_enclosing_floats() -> None:
    third = Interval.enclosing([Fraction(1, 3), Fraction(1, 2)], [Fraction(1, 3), Fraction(1, 2)])
    assert Fraction(third.low[0]) < Fraction(1, 3) < Fraction(third.high[0])
    assert np.nextafter(third.low[0], 1) == third.high[0]
    assert third.low[1] == third.high[1] == 0.5


def test_rationals_beyond_the_largest_float_get_infinite_ends() -> None:
    largest = Fraction(np.finfo(np.float64).max)
    for beyond in (largest * 2, largest + 1):
        found = Interval.enclosing([beyond, -beyond, -beyond], [beyond, -beyond, beyond])
        assert found.low.tolist() == [float(largest), -np.inf, -np.inf]
        assert found.high.tolist() == [np.inf, -float(largest), np.inf]
    exact = Interval.enclosing([-largest, Fraction(0)], [largest, Fraction(0)])
    assert (exact.low.tolist(), exact.high.tolist()) == ([-float(largest), 0.0], [float(largest), 0.0])
    assert not np.signbit([exact.low[1], exact.high[1]]).any()


def test_products_that_underflow_still_hold_the_exact_result() -> None:
    x = Interval.point([1e-200])
    assert holds(x * x, Fraction(1e-200) ** 2)
    assert (x * x).high > 0


def test_overflow_makes_an_end_infinite_and_keeps_the_other() -> None:
    x = interval([1e308, 1.7e308])
    assert (x + x).low > 0
    assert (x + x).high == np.inf
    assert interval([1.0, 1e39]).round("float32").high == np.inf


def test_nan_is_inside_nothing_and_both_zeros_are_inside_zero() -> None:
    everything = interval([-np.inf, np.inf])
    assert not everything.contains([np.nan]).any()
    assert Interval.point([0.0]).contains([-0.0]).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: interval([2.0, 1.0]), r"2\.0, 1\.0"),
        (lambda: interval([np.nan, 1.0]), "nan"),
        (lambda: Interval(np.zeros(2), np.zeros(3)), r"\(2,\) and \(3,\)"),
        (lambda: interval([1.0, 1.0]).divide_by_positive(interval([0.0, 1.0])), "0.0"),
        (lambda: interval([-1.0, 1.0]).sqrt(), "-1.0"),
        (lambda: interval([-2.0, -1.0]).nonnegative(), "-1.0"),
        (lambda: interval([0.0, 1.0]).contains([[1.0]]), r"\(1, 1\)"),
        (lambda: floats_inside(interval([0.0, 1.0]), "float64"), "float64"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_the_ends_cannot_be_changed() -> None:
    x = interval([0.0, 1.0])
    with pytest.raises(ValueError, match="read-only"):
        x.low[0] = -1.0


def test_zero_times_infinity_is_refused_rather_than_hidden() -> None:
    with pytest.raises(ValueError, match="nan"):
        interval([0.0, 1.0]) * interval([1.0, np.inf])
