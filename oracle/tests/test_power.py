"""The power of bounds: what would be noticed is never inside, and the world sizes at which that ends."""

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.bounds import MEANS, Enclosure, mean_sum_then_divide, sum_any_order
from lockstep.oracle.power import doubled, missing, rescaled, would_notice, would_notice_any
from lockstep.oracle.tests.test_bounds import averaged, draw

Numbers = Sequence[Fraction | float]


def test_faults_change_the_one_contribution_they_name() -> None:
    terms = [1.0, 3.0, -2.0]
    assert missing(terms, 1) == [1, 0, -2]
    assert doubled(terms, 2) == [1, 3, -2, -2]
    assert rescaled(terms, 1, Fraction(1, 3), "float32") == [1, 1, -2]
    assert rescaled(terms, 2, 0.1, "bfloat16") == [1, 3, Fraction(-205, 1024)]


@pytest.mark.parametrize(("form", "most"), [("bfloat16", 12), ("float16", 32), ("float32", 2897)])
def test_a_missing_rank_is_certain_to_be_noticed_up_to_a_known_world_size(form: str, most: int) -> None:
    def rule(terms: Numbers) -> Enclosure:
        return sum_any_order(terms, form)

    for world_size, noticed in ((most, True), (most + 1, False)):
        terms = [Fraction(1)] * world_size
        assert would_notice(rule, terms, missing(terms, 0)) == noticed


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_what_would_be_noticed_never_lands_inside(averaging: str) -> None:
    rng = random.Random(averaging)
    form, n = "bfloat16", 5

    def rule(terms: Numbers) -> Enclosure:
        return MEANS[averaging](terms, n, form)

    noticed = 0
    for _ in range(60):
        terms = [draw(rng, form, 2) for _ in range(n)]
        rank = rng.randrange(n)
        for faulty in (missing(terms, rank), doubled(terms, rank), rescaled(terms, rank, Fraction(1, 2), form)):
            if would_notice(rule, terms, faulty):
                noticed += 1
                assert not rule(terms).contains(averaged(rng, faulty, n, form, averaging))
    assert noticed > 100


def test_small_contributions_can_hide_and_are_reported_so() -> None:
    def rule(terms: Numbers) -> Enclosure:
        return sum_any_order(terms, "bfloat16")

    assert would_notice_any(rule, [1.0, 2.0, -1.5])
    assert not would_notice_any(rule, [1.0, 2.0, 2.0**-10])
    assert not would_notice_any(rule, [1.0, 0.0])


def test_a_mean_over_one_rank_too_few_is_disjoint_from_the_right_one() -> None:
    terms = [1.0, 2.5, 3.25, -0.5]
    assert mean_sum_then_divide(terms, 4, "float32").disjoint(mean_sum_then_divide(terms, 3, "float32"))
    assert mean_sum_then_divide(terms, 4, "float32").disjoint(sum_any_order(terms, "float32"))
