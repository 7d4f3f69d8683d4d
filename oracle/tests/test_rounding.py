"""Rounding checked against every 16-bit pattern, brute force over neighbours, ml_dtypes, NumPy and Fractions."""

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.rounding import (
    bfloat16_bits,
    double_rounding_is_harmless,
    exact,
    fma_float32,
    half_ulp,
    representable,
    round_array,
    round_through_float32,
    round_to_nearest,
    rounded_reciprocal,
    sqrt_above,
    sqrt_below,
    ulp,
)
from lockstep.oracle.tests.examples import examples

SIXTEEN_BIT = ("bfloat16", "float16")


def finite_values(form: str) -> NDArray[np.float64]:
    """Every finite value of a 16-bit format, ascending, as float64 (one zero)."""
    patterns = np.arange(2**16, dtype=np.uint16).view(FORMATS[form].numpy)
    with np.errstate(invalid="ignore"):  # signalling NaN are among the patterns
        return np.unique(patterns[np.isfinite(patterns)].astype(np.float64))


def bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("form", SIXTEEN_BIT)
def test_every_16_bit_value_rounds_to_itself(form: str) -> None:
    values = finite_values(form)
    assert (round_array(values, form).astype(np.float64) == values).all()


@pytest.mark.parametrize("form", SIXTEEN_BIT)
def test_numbers_between_all_neighbours_go_to_the_nearer_and_the_middle_to_the_even_one(form: str) -> None:
    values = finite_values(form)
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    even = np.where(bits(low.astype(FORMATS[form].numpy)) % 2 == 0, low, high)
    assert (round_array(np.nextafter(middle, -np.inf), form).astype(np.float64) == low).all()
    assert (round_array(np.nextafter(middle, np.inf), form).astype(np.float64) == high).all()
    assert (round_array(middle, form).astype(np.float64) == even).all()


@pytest.mark.parametrize("form", SIXTEEN_BIT)
def test_the_array_form_agrees_with_the_fraction_form_on_all_middles_and_beside_them(form: str) -> None:
    values = finite_values(form)[::97]
    middle = (values[:-1] + values[1:]) / 2
    points = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    assert [round_to_nearest(Fraction(x), form) for x in points] == round_array(points, form).astype(float).tolist()


@pytest.mark.parametrize("form", FORMATS)
def test_the_largest_value_is_kept_up_to_half_an_ulp_and_then_overflows(form: str) -> None:
    largest = FORMATS[form].largest
    edge = largest + half_ulp(largest, form)
    just_below = edge - half_ulp(largest, form) / 2**20
    for sign in (1, -1):
        assert round_to_nearest(sign * just_below, form) == sign * float(largest)
        assert round_to_nearest(sign * edge, form) == sign * math.inf


@pytest.mark.parametrize("form", FORMATS)
def test_half_of_the_least_subnormal_rounds_to_zero_of_its_sign_and_more_does_not(form: str) -> None:
    least = FORMATS[form].least_subnormal
    assert math.copysign(1, round_to_nearest(-least / 2, form)) == -1
    assert round_to_nearest(-least / 2, form) == 0
    assert round_to_nearest(least / 2 + least / 2**40, form) == least
    assert round_to_nearest(least * 3 / 2, form) == 2 * least


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_infinities_and_nan_pass_through_with_their_sign(form: str) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    rounded = round_array(special, form).astype(np.float64)
    assert np.array_equal(rounded, special, equal_nan=True)
    assert np.signbit(rounded[:4]).tolist() == [False, True, False, True]
    assert [math.copysign(1, round_to_nearest(x, form)) for x in (0.0, -0.0)] == [1, -1]
    assert math.copysign(1, round_to_nearest(Fraction(0), form)) == 1


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
@examples(100)
def test_float32_and_float16_agree_with_the_conversions_of_numpy(values: list[float]) -> None:
    x = np.array(values)
    with np.errstate(over="ignore"):
        for form in ("float64", "float32", "float16"):
            assert (bits(round_array(x, form)) == bits(x.astype(FORMATS[form].numpy))).all()


@given(st.fractions(), st.sampled_from(list(FORMATS)))
@examples(200)
def test_no_representable_neighbour_is_nearer_than_the_rounded_value(value: Fraction, form: str) -> None:
    assume(abs(value) <= FORMATS[form].largest)
    rounded = exact(round_to_nearest(value, form))
    error = abs(rounded - value)
    assert representable(rounded, form)
    assert (
        error
        <= half_ulp(value, form)
        <= max(FORMATS[form].unit_roundoff * abs(value), FORMATS[form].least_subnormal / 2)
    )
    for neighbour in (rounded - ulp(rounded, form), rounded + ulp(rounded, form)):
        assert error <= abs(neighbour - value)


def test_the_ulp_of_powers_of_two_and_of_their_lower_neighbours_differs_by_two() -> None:
    assert ulp(1, "float32") == Fraction(1, 2**23)
    assert ulp(float(np.nextafter(np.float32(1), np.float32(0))), "float32") == Fraction(1, 2**24)
    assert (
        ulp(0, "bfloat16") == ulp(FORMATS["bfloat16"].least_normal, "bfloat16") == FORMATS["bfloat16"].least_subnormal
    )


def test_float32_to_bfloat16_by_integers_agrees_with_ml_dtypes_on_all_high_halves_and_hard_low_halves() -> None:
    high = np.arange(2**16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234):
        values = (high + np.uint32(low)).view(np.float32)
        assert (bfloat16_bits(values[np.isnan(values)]) == 0x7FC0).all()
        numbers = values[~np.isnan(values)]
        assert (bfloat16_bits(numbers) == bits(numbers.astype(ml_dtypes.bfloat16))).all()
        assert (bfloat16_bits(numbers) == bits(round_array(numbers, "bfloat16"))).all()


def test_float64_to_bfloat16_through_float32_rounds_twice_and_ml_dtypes_does_so() -> None:
    trap = np.array([1 + 2.0**-8 + 2.0**-40])
    assert round_array(trap, "bfloat16").astype(float) == 1 + 2.0**-7
    assert round_through_float32(trap, "bfloat16").astype(float) == 1
    assert trap.astype(ml_dtypes.bfloat16).astype(float) == 1


@pytest.mark.parametrize("form", SIXTEEN_BIT)
def test_a_mean_of_16_bit_values_divided_in_float32_is_the_correctly_rounded_quotient(form: str) -> None:
    """Figueroa's theorem on every positive value and every world size to 64; subnormal quotients too."""
    assert double_rounding_is_harmless("float32", form)
    values = finite_values(form)
    values = values[values > 0]
    for world_size in range(1, 65):
        through = round_array((values.astype(np.float32) / np.float32(world_size)), form)
        # float64 quotients cannot fall on a middle without being one: 53 >= 2 * 11 + 2
        assert (through == round_array(values / world_size, form)).all()


def test_double_rounding_is_harmless_only_with_twice_the_bits_and_two() -> None:
    harmless = {(a, b) for a in FORMATS for b in FORMATS if double_rounding_is_harmless(a, b)}
    assert harmless == {("float64", b) for b in ("float32", "float16", "bfloat16")} | {
        ("float32", "float16"),
        ("float32", "bfloat16"),
    }


def float32_from(pattern: int) -> float:
    return float(struct.unpack("f", struct.pack("I", pattern))[0])


float32s = st.integers(0, 2**32 - 1).map(float32_from).filter(math.isfinite)


@given(float32s, float32s, float32s)
@examples(500)
def test_the_fused_multiply_add_is_the_exact_value_rounded_once(a: float, b: float, c: float) -> None:
    value = exact(a) * exact(b) + exact(c)
    (result,) = fma_float32(*(np.array([x], dtype=np.float32) for x in (a, b, c)))
    assert float(result) == (round_to_nearest(value, "float32") if value else 0.0)


def test_the_fused_multiply_add_keeps_the_part_that_a_float64_sum_drops() -> None:
    """c + a b = 1 + 2**-23 + 2**-24 - 2**-70, just below a middle: float64 makes it the middle, and that goes up."""
    a, b, c = (np.array([x], dtype=np.float32) for x in (2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23))
    through_float64 = (a.astype(np.float64) * b + c).astype(np.float32)
    assert through_float64 == np.float32(1 + 2.0**-22)
    assert fma_float32(a, b, c) == np.float32(1 + 2.0**-23)


def test_the_fused_multiply_add_does_not_round_the_product() -> None:
    x = np.array([1 + 2.0**-12], dtype=np.float32)
    square = np.array([1 + 2.0**-11], dtype=np.float32)  # x * x rounded: the last term, 2**-24, is lost
    assert x * x == square
    assert fma_float32(x, x, -square).tolist() == [2.0**-24]


@given(st.fractions(min_value=0), st.fractions(min_value=0))
@examples(200)
def test_rational_square_roots_enclose_and_are_exact_on_squares(value: Fraction, root: Fraction) -> None:
    assert sqrt_below(value) ** 2 <= value <= sqrt_above(value) ** 2
    assert sqrt_above(value) - sqrt_below(value) <= sqrt_above(value) / 2**127
    assert sqrt_below(root * root) == root == sqrt_above(root * root)


def test_the_float32_reciprocal_of_seven_is_not_harmless_on_multiples_of_seven() -> None:
    """RN(21 * RN(1 / 7)) = 3.0000002 in float32, and 3 in the other formats."""
    wrong = {form for form in FORMATS if round_to_nearest(21 * rounded_reciprocal(7, form), form) != 3}
    assert wrong == {"float32"}
    assert rounded_reciprocal(8, "bfloat16") == Fraction(1, 8)


@given(st.sampled_from(list(FORMATS)), st.integers(-260, 260), st.integers(-1100, 1100), st.sampled_from((1, 3)))
@examples(300)
def test_a_format_holds_just_the_numbers_that_rounding_leaves_as_they_are(
    form: str, by: int, exponent: int, divisor: int
) -> None:
    """Around what it ends at, too: the largest value, the least subnormal, and significands of one bit too many."""
    number = FORMATS[form]
    ends = (number.largest, number.least_subnormal, Fraction(2**number.precision))
    for value in (Fraction(by) * Fraction(2) ** exponent / divisor, *(end + end * Fraction(by, 256) for end in ends)):
        rounded = round_to_nearest(value, form)
        assert representable(value, form) == (math.isfinite(rounded) and Fraction(rounded) == value)
    assert not representable(math.inf, form)
    assert not representable(math.nan, form)


INTEGERS: Any = np.arange(3, dtype=np.int64)
DOUBLES: Any = np.zeros(1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: round_to_nearest(1.0, "float8"), "float8"),
        (lambda: exact(math.inf), "inf"),
        (lambda: round_array(INTEGERS, "float32"), "int64"),
        (lambda: bfloat16_bits(DOUBLES), "float64"),
        (lambda: fma_float32(DOUBLES, DOUBLES, DOUBLES), "float64"),
        (lambda: rounded_reciprocal(0, "float32"), "0"),
        (lambda: sqrt_below(Fraction(-1)), "-1"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_whole_numbers_are_exact_whatever_their_type() -> None:
    assert exact(2**53 + 1) == exact(np.int64(2**53 + 1)) == 2**53 + 1
