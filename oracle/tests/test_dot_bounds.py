"""Bounds of dot products and norms checked against simulated arithmetic, fused and flushed at random."""

import random
from fractions import Fraction

import numpy as np
import pytest

from lockstep.oracle.bounds import (
    Enclosure,
    dot_any_order,
    dot_mixed,
    norm,
    norm_of_norms,
    norm_of_shards,
    square_root,
    squared_norm,
)
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.rounding import sqrt_below
from lockstep.oracle.tests.test_bounds import FORMS, draw, random_sum, rn


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("around", [0, "underflow"])
def test_dot_products_with_any_use_of_fma_stay_inside(form: str, around: int | str) -> None:
    rng = random.Random(form)
    shift = 0 if around == 0 else FORMATS[form].emin // 2 - 4
    for _ in range(40):
        n = rng.randint(1, 9)
        x, y = ([draw(rng, form, 3, shift) for _ in range(n)] for _ in range(2))
        for fused in (0.0, 0.5, 1.0):
            total = Fraction(0)
            for a, b in zip(x, y, strict=True):
                total = rn(total + (a * b if rng.random() < fused else rn(a * b, form)), form)
            assert dot_any_order(x, y, form).contains(total)
            assert dot_mixed(x, y, "float64", form).contains(
                rn(sum((a * b for a, b in zip(x, y, strict=True)), Fraction()), form)
            )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("flush_to_zero", [False, True])
def test_floats_are_enclosed_as_the_fractions_that_they_are(form: str, flush_to_zero: bool) -> None:
    rng, number = random.Random(form), FORMATS[form]
    ends = [number.least_subnormal, number.least_normal, -number.largest, Fraction(0), Fraction(-1)]
    others = [Fraction(1), number.largest, -number.least_normal, number.least_subnormal, Fraction(0)]
    cases = [(ends, others), *(([x], [y]) for x, y in zip(ends, others, strict=True))]
    cases += [([draw(rng, form, 4) for _ in range(5)], [draw(rng, form, 4) for _ in range(5)]) for _ in range(20)]
    for x, y in cases:
        found = dot_any_order([float(a) for a in x], [float(b) for b in y], form, flush_to_zero)
        assert found == dot_any_order(x, y, form, flush_to_zero)
    if form != "float64":
        with pytest.raises(ValueError, match=f"0.1 is not a value of {form}"):
            dot_any_order([1.0, 0.1], [1.0, 1.0], form)
    with pytest.raises(ValueError, match="inf is not a finite number"):
        dot_any_order([1.0, float("-inf")], [1.0, 1.0], form)


@pytest.mark.parametrize("form", ["float32", "bfloat16"])
def test_flushed_dot_products_stay_inside_only_with_the_flush_terms(form: str) -> None:
    """VDPBF16PS reads and writes float32 subnormals as zero: 64 products of 2**-132 give zero."""
    least = Fraction(2) ** (FORMATS[form].emin // 2 - 3)
    x = [least] * 64
    assert dot_any_order(x, x, form, flush_to_zero=True).contains(0)
    assert not dot_any_order(x, x, form).contains(0)
    subnormal, large = [FORMATS[form].least_subnormal], [Fraction(2) ** 100]  # read as zero, it takes 2**100 along
    assert dot_any_order(subnormal, large, form, flush_to_zero=True).contains(0)
    assert not dot_any_order(subnormal, large, form).contains(0)


@pytest.mark.parametrize("form", ["float64", "float32", "bfloat16"])
def test_norms_whole_by_shards_and_of_norms_stay_inside(form: str) -> None:
    rng = random.Random(form)

    def root(square: Fraction, off: int) -> Fraction:
        value = rn(sqrt_below(square), form)
        return value + off * (rn(value * (1 + 2 * FORMATS[form].unit_roundoff), form) - value)

    for _ in range(10):
        shards = [[draw(rng, form, 2) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 5))]
        squares = [random_sum(rng, [rn(x * x, form) for x in shard], form) for shard in shards]
        whole = random_sum(rng, squares, form)
        partials = [squared_norm(shard, form) for shard in shards]
        assert all(part.contains(q) for part, q in zip(partials, squares, strict=True))
        flat = [x for shard in shards for x in shard]
        for off in (0, 1):
            assert norm_of_shards(partials, form, sqrt_ulps=off).contains(root(whole, off))
            norms = [root(q, off) for q in squares]
            total = root(random_sum(rng, [rn(x * x, form) for x in norms], form), off)
            enclosures = [norm(shard, form, sqrt_ulps=off) for shard in shards]
            assert norm_of_norms(enclosures, form, sqrt_ulps=off).contains(total)
            ordered = random_sum(rng, [rn(x * x, form) for x in flat], form)
            assert norm(flat, form, sqrt_ulps=off).contains(root(ordered, off))


def test_the_sum_over_shards_has_a_rounding_error_of_its_own() -> None:
    """1 + u + ... + u, eight times, may be computed as 1; the exact sum's root is 1 + 4 u in bfloat16."""
    u = FORMATS["bfloat16"].unit_roundoff
    partials = [Enclosure(x, x) for x in [Fraction(1)] + [u] * 8]
    assert norm_of_shards(partials, "bfloat16").contains(1)
    assert norm_of_shards([Enclosure(1 + 8 * u, 1 + 8 * u)], "bfloat16") == Enclosure(1 + 4 * u, 1 + 4 * u)


def test_a_correctly_rounded_root_of_a_known_square_is_one_value_and_an_ulp_more_is_not() -> None:
    nine = Enclosure(Fraction(9), Fraction(9))
    assert square_root(nine, "float32") == Enclosure(Fraction(3), Fraction(3))
    assert square_root(nine, "float32", sqrt_ulps=1).contains(np.nextafter(np.float32(3), np.float32(4)))


def test_norms_of_replicated_gradients_added_over_ranks_are_noticed() -> None:
    shard = [Fraction(k) for k in range(1, 20)]
    whole = norm(shard, "float32")
    replicated = norm_of_shards([squared_norm(shard, "float32")] * 2, "float32")
    assert whole.disjoint(replicated)


def test_a_dot_product_reaches_as_far_as_gamma_worked_out_by_hand() -> None:
    """n = 16, u = 2**-8: gamma is 1/15, far from n u = 1/16; and of 256 terms there is none."""
    eta = FORMATS["bfloat16"].least_subnormal
    enclosure = dot_any_order([1.0] * 16, [1.0] * 16, "bfloat16")
    reach = Fraction(16, 15) + 16 * eta / 2 * Fraction(16, 15)
    assert (enclosure.low, enclosure.high) == (16 - reach, 16 + reach)
    assert dot_any_order([1.0] * 255, [1.0] * 255, "bfloat16").high > 255 * 255
    with pytest.raises(ValueError, match="256 terms are too many for bfloat16"):
        dot_any_order([1.0] * 256, [1.0] * 256, "bfloat16")
