"""Bounds checked against simulated arithmetic: all trees of few terms, random orders of many, sums that reach them."""

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.bounds import (
    MEANS,
    Enclosure,
    cast,
    dot_any_order,
    elementwise,
    mean_divide_then_sum,
    mean_multiply_then_sum,
    mean_sum_then_divide,
    sum_any_order,
    sum_known_order,
    sum_mixed,
)
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.rounding import exact, round_to_nearest, rounded_reciprocal

FORMS = tuple(FORMATS)


def rn(value: Fraction, form: str) -> Fraction:
    return exact(round_to_nearest(value, form)) if value else Fraction(0)


def draw(rng: random.Random, form: str, spread: int = 6, around: int = 0) -> Fraction:
    """A random value of the format, of either sign, of magnitude about 2**around."""
    significand = rng.getrandbits(FORMATS[form].precision) | 1
    scaled = Fraction(significand * rng.choice((-1, 1))) * Fraction(2) ** (rng.randint(-spread, spread) + around)
    return rn(scaled / 2 ** FORMATS[form].precision, form)


def trees(terms: tuple[Fraction, ...], form: str) -> Iterator[Fraction]:
    """The computed sum of every binary tree over the terms, in every order."""
    if len(terms) == 1:
        yield terms[0]
        return
    places = range(len(terms))
    for size in range(1, len(terms)):
        for chosen in itertools.combinations(places, size):
            left = tuple(terms[i] for i in chosen)
            right = tuple(terms[i] for i in places if i not in chosen)
            for a in trees(left, form):
                for b in trees(right, form):
                    yield rn(a + b, form)


def random_sum(rng: random.Random, terms: list[Fraction], form: str, flush: bool = False) -> Fraction:
    """Adds two terms chosen at random until one is left; ``flush`` may read or write any subnormal as zero."""

    def perhaps(x: Fraction) -> Fraction:
        return Fraction(0) if flush and abs(x) < FORMATS[form].least_normal and rng.random() < 0.7 else x

    left = list(terms)
    while len(left) > 1:
        a, b = (perhaps(left.pop(rng.randrange(len(left)))) for _ in range(2))
        left.append(perhaps(rn(a + b, form)))
    return left[0]


@pytest.mark.parametrize("form", FORMS)
def test_every_tree_of_four_terms_stays_inside_the_any_order_bound(form: str) -> None:
    rng = random.Random(form)
    for _ in range(4):
        terms = tuple(draw(rng, form) for _ in range(4))
        enclosure = sum_any_order(terms, form)
        assert all(enclosure.contains(computed) for computed in trees(terms, form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 64, 600])
def test_one_and_many_half_ulps_come_within_a_factor_of_one_plus_n_u_of_the_any_order_bound(form: str, n: int) -> None:
    """1 + u + u + ...: each addition is a tie that goes back to 1. 600 terms are more than 1 / u in bfloat16."""
    u = FORMATS[form].unit_roundoff
    terms = [Fraction(1)] + [u] * (n - 1)
    computed = Fraction(1)
    for term in terms[1:]:
        computed = rn(computed + term, form)
    enclosure = sum_any_order(terms, form)
    assert enclosure.contains(computed)
    assert sum(terms) - computed == (n - 1) * u
    assert sum(terms) - enclosure.low == (n - 1) * u * (1 + (n - 1) * u)


@pytest.mark.parametrize("form", FORMS)
def test_the_running_bound_holds_is_sharper_and_is_reached(form: str) -> None:
    rng = random.Random(form)
    for n in (2, 8, 40):
        terms = [draw(rng, form) for _ in range(n)]
        partials = list(itertools.accumulate(terms, lambda a, b: rn(a + b, form)))
        known = sum_known_order(terms, partials[1:], form)
        anyhow = sum_any_order(terms, form)
        assert known.contains(partials[-1])
        assert anyhow.low <= known.low
        assert known.high <= anyhow.high
    u = FORMATS[form].unit_roundoff
    tie = [Fraction(1), u]
    assert sum_known_order(tie, [Fraction(1)], form) == Enclosure(Fraction(1), 1 + 2 * u)  # 1 + u computed as 1


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_subnormals_are_exact_and_the_running_bound_says_so(form: str) -> None:
    eta = FORMATS[form].least_subnormal
    terms = [3 * eta, -eta, 5 * eta]
    assert sum_known_order(terms, [2 * eta, 7 * eta], form) == Enclosure(7 * eta, 7 * eta)
    tiny = FORMATS[form].least_normal  # the first inexact sums lie just above 2 tiny
    tie = [2 * tiny - eta, 2 * eta]
    assert rn(sum(tie, Fraction()), form) == 2 * tiny
    assert sum_known_order(tie, [2 * tiny], form) == Enclosure(2 * tiny, 2 * tiny + 2 * eta)


@pytest.mark.parametrize("form", FORMS)
def test_flushed_sums_and_means_stay_inside_only_with_the_flush_terms(form: str) -> None:
    rng = random.Random(form)
    outside_without = 0
    for _ in range(60):
        n = rng.randint(2, 6)
        terms = [draw(rng, form, 3, FORMATS[form].emin) for _ in range(n)]
        computed = random_sum(rng, terms, form, flush=True)
        assert sum_any_order(terms, form, flush_to_zero=True).contains(computed)
        outside_without += not sum_any_order(terms, form).contains(computed)
        quotient = rn(computed / n, form)
        quotient = Fraction(0) if abs(quotient) < FORMATS[form].least_normal else quotient
        assert mean_sum_then_divide(terms, n, form, flush_to_zero=True).contains(quotient)
    assert outside_without > 0


@pytest.mark.parametrize("form", FORMS)
def test_what_may_be_flushed_may_also_be_kept_or_be_all_there_is(form: str) -> None:
    rng, eta = random.Random(form), FORMATS[form].least_subnormal
    assert sum_any_order([eta], form, flush_to_zero=True).contains(0)
    for _ in range(20):
        terms = [draw(rng, form, 3) for _ in range(rng.randint(1, 6))]
        kept, flushed = (sum_any_order(terms, form, flush_to_zero=flush) for flush in (False, True))
        assert flushed.low < kept.low <= kept.high < flushed.high


def averaged(rng: random.Random, terms: list[Fraction], n: int, form: str, averaging: str) -> Fraction:
    if averaging == "sum then divide":
        return rn(random_sum(rng, terms, form) / n, form)
    if averaging == "divide then sum":
        return random_sum(rng, [rn(x / n, form) for x in terms], form)
    return random_sum(rng, [rn(x * rounded_reciprocal(n, form), form) for x in terms], form)


def test_there_is_a_bound_for_every_way_of_averaging_that_programs_name() -> None:
    assert tuple(MEANS) == AVERAGINGS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_means_in_any_order_stay_inside_normal_and_subnormal(form: str, averaging: str) -> None:
    rng = random.Random(form + averaging)
    for around in (0, FORMATS[form].emin):
        for n in (1, 2, 3, 5, 7, 8, 13):
            for _ in range(6):
                terms = [draw(rng, form, 4, around) for _ in range(n)]
                assert MEANS[averaging](terms, n, form).contains(averaged(rng, terms, n, form, averaging))


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_the_mean_bounds_are_nearly_reached_by_a_single_term(averaging: str) -> None:
    """Brute force over all bfloat16 significands and some N: no error above the bound, one above 9/10 of it."""
    rng = random.Random(0)
    worst = Fraction(0)
    for n, significand in itertools.product((3, 7, 11, 13, 61), range(128, 256)):
        term = Fraction(significand)
        enclosure = MEANS[averaging]([term], n, "bfloat16")
        error = abs(averaged(rng, [term], n, "bfloat16", averaging) - term / n)
        worst = max(worst, error / ((enclosure.high - enclosure.low) / 2))
    assert Fraction(9, 10) < worst <= 1


@pytest.mark.parametrize("form", FORMS)
def test_half_of_the_least_subnormal_is_lost_by_a_division_and_the_bound_allows_just_that(form: str) -> None:
    eta = FORMATS[form].least_subnormal
    for mean in (mean_sum_then_divide, mean_divide_then_sum, mean_multiply_then_sum):
        enclosure = mean([eta], 2, form)
        assert enclosure.contains(0)
        assert enclosure.low == -FORMATS[form].unit_roundoff * eta / 2


def test_a_rounded_reciprocal_needs_its_own_bound() -> None:
    """1/3 in bfloat16 is off by 2**-9: means by it keep to their own bound, and some break that of a division."""
    r = rounded_reciprocal(3, "bfloat16")
    means = [(Fraction(k), rn(r * k, "bfloat16")) for k in range(128, 256)]
    assert all(mean_multiply_then_sum([x], 3, "bfloat16").contains(mean) for x, mean in means)
    assert not all(mean_divide_then_sum([x], 3, "bfloat16").contains(mean) for x, mean in means)


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_16_bit_products_rounded_through_float32_stay_inside(form: str) -> None:
    """All significands times RN32(1 / N): torch's CPU product rounds to float32 first."""
    for n in (3, 7, 11, 13):
        r = rounded_reciprocal(n, "float32")
        for significand in range(2 ** (FORMATS[form].precision - 1), 2 ** FORMATS[form].precision, 3):
            for scale in (Fraction(1), FORMATS[form].least_subnormal):
                term = significand * scale
                computed = rn(rn(term * r, "float32"), form)
                assert mean_multiply_then_sum([term], n, form, reciprocal=r).contains(computed)


@pytest.mark.parametrize("wire", ["bfloat16", "float16", "float32"])
def test_a_wide_accumulator_with_one_final_rounding_is_enclosed_and_sharper(wire: str) -> None:
    rng = random.Random(wire)
    acc = "float32" if wire != "float32" else "float64"
    for _ in range(20):
        terms = [draw(rng, wire) for _ in range(9)]
        mixed, narrow = sum_mixed(terms, acc, wire), sum_any_order(terms, wire)
        assert mixed.contains(rn(random_sum(rng, terms, acc), wire))
        assert mixed.high - mixed.low < narrow.high - narrow.low


def test_a_cast_of_a_known_value_is_one_value_and_an_enclosure_is_cast_end_by_end() -> None:
    third = Fraction(1, 3)
    assert cast(Enclosure(third, third), "bfloat16") == Enclosure(*[exact(round_to_nearest(third, "bfloat16"))] * 2)
    wide = cast(Enclosure(Fraction(1), 1 + Fraction(1, 2**8) + Fraction(1, 2**20)), "bfloat16")
    assert wide == Enclosure(Fraction(1), 1 + Fraction(1, 2**7))


def test_elementwise_applies_the_rule_to_every_element_of_every_shape() -> None:
    rng = np.random.default_rng(0)
    ranks = [rng.standard_normal((3, 2)).astype(np.float32) for _ in range(4)]
    interval = elementwise(lambda terms: mean_sum_then_divide(terms, 4, "float32"), ranks)
    computed = (((ranks[2] + ranks[0]) + ranks[3]) + ranks[1]) / np.float32(4)
    assert interval.contains(computed).all()
    assert not interval.contains(computed + ranks[0]).any()
    one = mean_sum_then_divide([float(r[2, 1]) for r in ranks], 4, "float32")
    assert Fraction(interval.low[2, 1]) <= one.low
    assert one.high <= Fraction(interval.high[2, 1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sum_any_order([], "float32"), "no terms"),
        (lambda: sum_any_order([0.1], "bfloat16"), "0.1 is not a value of bfloat16"),
        (lambda: sum_any_order([60000.0, 60000.0], "float16"), "65504"),
        (lambda: mean_sum_then_divide([60000.0, 60000.0], 2, "float16"), "65504"),
        (lambda: sum_known_order([1.0, 2.0], [1.0, 3.0], "float32"), "1 steps, not 2"),
        (lambda: mean_sum_then_divide([1.0], 0, "float32"), "world_size 0"),
        (lambda: mean_sum_then_divide([1.0], 257, "bfloat16"), "world_size 257"),
        (lambda: mean_multiply_then_sum([1.0], 0, "float32", Fraction(1)), "world_size 0"),
        (lambda: dot_any_order([1.0], [1.0, 2.0], "float32"), "1 by 2"),
        (lambda: dot_any_order([1.0] * 300, [1.0] * 300, "bfloat16"), "300 terms"),
        (lambda: sum_any_order([float("inf")], "float32"), "inf"),
        (lambda: sum_any_order([1.0], "int8"), "int8"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
