"""The data of a scenario: distinct, divisible, in its place, and as published."""

import itertools
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.events import Backward, Event, Finish, Step, ZeroGrad
from lockstep.oracle.fingerprint import (
    MOST_SIDON,
    capacity,
    coefficients,
    contributions,
    mian_chowla,
    multiplier,
    numbers,
    odd_part,
    runs_needed,
)
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.forwards import by_forward
from lockstep.oracle.initial import initial_parameters
from lockstep.oracle.interpreter import is_exact
from lockstep.oracle.model import LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.tests.drawn import scenarios

# The beginning of OEIS A005282.
PUBLISHED = (
    *(1, 2, 4, 8, 13, 21, 31, 45, 66, 81, 97, 123, 148, 182, 204, 252, 290, 361, 401, 475, 565, 593, 662, 775, 822),
    *(916, 970, 1016, 1159, 1312, 1395, 1523, 1572, 1821, 1896, 2029, 2254, 2379, 2510, 2780, 2925, 3155, 3354, 3591),
)
ONE = Parameter((1,))


def pairwise_sums(terms: list[int]) -> list[int]:
    return [a + b for a, b in combinations_with_replacement(terms, 2)]


def test_the_sequence_is_the_published_one() -> None:
    assert mian_chowla(len(PUBLISHED)) == PUBLISHED


def test_each_term_is_the_least_that_keeps_all_pairwise_sums_distinct() -> None:
    terms = [1]
    for candidate in range(2, mian_chowla(20)[-1] + 1):
        sums = pairwise_sums([*terms, candidate])
        if len(set(sums)) == len(sums):
            terms.append(candidate)
    assert tuple(terms) == mian_chowla(20)


def test_the_numbers_of_a_small_scenario_have_distinct_pairwise_sums_and_none_is_twice_another() -> None:
    terms = [int(number) for number in numbers(MOST_SIDON)]
    sums = pairwise_sums(terms)
    assert len(set(sums)) == len(sums)
    assert not {2 * term for term in terms} & set(terms)
    assert terms[:6] == [1, 3, 7, 15, 25, 41]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 66, 100, 128, 129, 1000, 4096, 100_000])
def test_numbers_are_distinct_positive_odd_and_small(count: int) -> None:
    values = numbers(count)
    assert len(set(values.tolist())) == count == len(values)
    assert (values > 0).all()
    assert (values % 2 == 1).all()
    if count > MOST_SIDON:
        assert values.max() < 32 * count


@pytest.mark.parametrize("ranks", [3, 5, 7])
def test_a_ranks_own_contribution_is_hardly_ever_the_mean_over_ranks(ranks: int) -> None:
    """As it would be for the middle rank if numbers rose evenly: a rank that never communicates would look right."""
    for elements in range(1, 130):
        by_rank = numbers(ranks * elements).reshape(ranks, elements)
        for own in by_rank:
            assert (ranks * own == by_rank.sum(axis=0)).sum() * 5 <= elements


@pytest.mark.parametrize(("number", "odd"), [(1, 1), (2, 1), (3, 3), (12, 3), (840, 105), (64, 1)])
def test_the_odd_part_is_what_is_left_when_two_is_divided_out(number: int, odd: int) -> None:
    assert odd_part(number) == odd


def test_the_multiplier_counts_the_synchronizations_of_the_longest_window_between_zero_grads() -> None:
    both, local = (Backward(((0,),) * 3), Finish()), Backward(((0,),) * 3, False)

    def power(*program: object) -> int:
        return multiplier(Scenario(3, (ONE,), program))  # type: ignore[arg-type]

    assert power(*both) == 3
    assert power(local, local, *both) == 3
    assert power(*both, Step(), *both) == 9
    assert power(*both, ZeroGrad(), *both) == 3
    assert power(*both, ZeroGrad(False), *both, Step(), *both) == 9
    assert power() == 3  # nothing is synchronized, nothing is asked of the data
    assert multiplier(Scenario(2, (ONE,), (Backward(((0,),) * 6), Finish()))) == 3  # six samples on two ranks


@given(scenarios())
@settings(deadline=None)
def test_contributions_are_distinct_divisible_and_zero_just_where_a_sample_does_not_use_the_parameter(
    scenario: Scenario,
) -> None:
    """Distinct from all others in float64, which has room for any number here; for the others see below."""
    factor, seen = multiplier(scenario), set[int]()
    for event, batch in zip(scenario.microbatches, contributions(scenario), strict=True):
        for index, (parameter, values) in enumerate(zip(scenario.parameters, batch, strict=True)):
            assert values.shape == (scenario.samples, parameter.count)
            for order, sample in zip(event.orders, values.tolist(), strict=True):
                if index not in order:
                    assert not any(sample)
                elif scenario.only is None:
                    assert all(value % factor == 0 and is_signed(value // factor, scenario.signs) for value in sample)
                    sample = [abs(value) for value in sample]
                    if parameter.dtype == "float64":
                        assert not seen & set(sample)
                        assert len(set(sample)) == len(sample)
                        seen |= set(sample)


def is_signed(number: int, signs: str) -> bool:
    return {"positive": number > 0, "negative": number < 0, "mixed": number % 4 == 1}[signs]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 7])
def test_mixed_signs_are_both_there_and_a_sum_is_zero_only_where_4_divides_the_number_of_its_terms(
    ranks: int, dtype: str
) -> None:
    both, local = (Backward(((0,),) * ranks), Finish()), Backward(((0,),) * ranks, False)
    mixed = Scenario(ranks, (Parameter((11,), dtype),), (local, *both, Step()), signs="mixed")
    values = np.stack([batch[0] for batch in contributions(mixed)])
    assert {-1, 1} <= set(np.sign(values).reshape(-1).tolist())
    for batches in (1, 2):
        if ranks * batches % 4:
            assert values[:batches].sum(axis=(0, 1)).all()
    sizes = [np.abs(batch[0]) for batch in contributions(mixed)]
    assert np.array_equal(sizes, [batch[0] for batch in contributions(replace(mixed, signs="positive"))])
    assert np.array_equal(sizes, [-batch[0] for batch in contributions(replace(mixed, signs="negative"))])


def test_the_smallest_numbers_of_mixed_signs() -> None:
    scenario = Scenario(2, (Parameter((3,)),), (Backward(((0,), (0,))), Finish()), signs="mixed")
    assert [values.tolist() for values in contributions(scenario)[0]] == [[[1, -3, -7], [-15, 25, 41]]]


def test_only_leaves_one_contribution_and_it_is_the_multiplier() -> None:
    model = (Parameter((2,)), Parameter((3,)))
    order = ((0, 1),) * 3
    scenario = Scenario(3, model, (Backward(order, False), Backward(order), Finish()), only=(1, 2, 1, 0))
    for batch, by_parameter in enumerate(contributions(scenario)):
        for parameter, values in enumerate(by_parameter):
            for (sample, element), value in np.ndenumerate(values):
                assert value == (3 if (batch, sample, parameter, element) == (1, 2, 1, 0) else 0)


def test_only_a_contribution_that_its_sample_does_not_use_leaves_none() -> None:
    scenario = Scenario(2, (ONE, ONE), (Backward(((0,), (0, 1))), Finish()), only=(0, 0, 1, 0))
    assert not any(values.any() for values in contributions(scenario)[0])


@given(scenarios())
@settings(deadline=None)
def test_a_ranks_coefficients_are_the_mean_of_its_samples(scenario: Scenario) -> None:
    per_rank = scenario.samples // scenario.world_size
    for rank in range(scenario.world_size):
        for batch, mine in zip(contributions(scenario), coefficients(scenario, rank), strict=True):
            for parameter, values, mean in zip(scenario.parameters, batch, mine, strict=True):
                assert mean.shape == parameter.shape
                for element, value in enumerate(mean.reshape(-1)):
                    total = sum(int(values[rank * per_rank + sample, element]) for sample in range(per_rank))
                    if per_rank in (1, 2):  # a third of an odd number is in no binary format
                        assert Fraction(value) == Fraction(total, per_rank)
                    else:
                        assert value == total / per_rank


@given(scenarios())
@settings(deadline=None)
def test_ranks_begin_with_different_values_in_every_element(scenario: Scenario) -> None:
    start = [
        [value for values in initial_parameters(scenario, rank) for value in values.reshape(-1).tolist()]
        for rank in range(scenario.world_size)
    ]
    everything = [value for mine in start for value in mine]
    assert len(set(everything)) == len(everything)
    assert all(value == int(value) > 0 for value in everything)
    shapes = [values.shape for values in initial_parameters(scenario, 0)]
    assert shapes == [parameter.shape for parameter in scenario.parameters]


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4])
@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("dtype", FORMATS)
def test_sparse_runs_share_out_distinct_numbers_that_stay_exact(dtype: str, ranks: int, accumulation: int) -> None:
    model, orders = (Parameter((3,), dtype), Parameter((5,), dtype)), ((0, 1),) * ranks
    local = (Backward(orders, False),) * (accumulation - 1)
    whole = Scenario(ranks, model, (*local, Backward(orders), Finish()))
    runs = runs_needed(whole)
    scenarios = [replace(whole, sparse=(run, runs)) for run in range(runs)]
    tables = np.array([[np.concatenate(batch, axis=1) for batch in contributions(each)] for each in scenarios])
    assert ((tables != 0).sum(axis=0) == 1).all()  # every contribution in one run and no other
    for column in tables.reshape(runs, ranks * accumulation, -1).transpose(0, 2, 1).reshape(-1, ranks * accumulation):
        there = column[column != 0]
        assert len(set(there.tolist())) == len(there)
    trap = (dtype, ranks) == ("float32", 7)  # numerics: the one rounded reciprocal of up to 8 ranks that is too far off
    for averaging in AVERAGINGS:
        assert all(is_exact(each, averaging) for each in scenarios) is not trap


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_sparse_runs_round_nowhere_in_any_order(dtype: str) -> None:
    """Added up one by one in the format itself, in 20 orders."""
    order = np.random.default_rng(0)
    for ranks in range(2, 9):
        program = (Backward(((0,),) * ranks, False), Backward(((0,),) * ranks), Finish())
        whole = Scenario(ranks, (Parameter((6,), dtype),), program)
        for run in range(runs_needed(whole)):
            terms = np.concatenate(
                [batch[0] for batch in contributions(replace(whole, sparse=(run, runs_needed(whole))))]
            )
            for _ in range(20):
                total = np.zeros(6, FORMATS[dtype].numpy)
                for term in order.permutation(terms):
                    total = (total + term.astype(FORMATS[dtype].numpy)).astype(FORMATS[dtype].numpy)
                assert total.astype(np.int64).tolist() == terms.sum(axis=0).tolist()


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_of_one_size_that_change_places_on_one_rank_show(dtype: str, ranks: int, accumulation: int) -> None:
    """Buckets that are filled as hooks fire do that. Where numbers are few, single elements may be alike on a rank."""
    for count, parameters in itertools.product((2, 3, 5, 7), (2, 3, 4)):
        orders = (tuple(range(parameters)),) * ranks
        local: tuple[Event, ...] = (Backward(orders, False),) * (accumulation - 1)
        program = (*local, Backward(orders), Finish())
        whole = Scenario(ranks, (Parameter((count,), dtype),) * parameters, program)
        runs = runs_needed(whole)
        tables = [contributions(replace(whole, sparse=(run, runs))) for run in range(runs)]
        for rank, batch in itertools.product(range(ranks), range(accumulation)):
            mine = [np.concatenate([table[batch][each][rank] for table in tables]) for each in range(parameters)]
            assert len({values.tobytes() for values in mine}) == parameters


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 7, 8])
def test_small_numbers_tell_windows_and_elements_apart(ranks: int) -> None:
    """Their sums are not one number over and over, nor is a micro-batch like the one before."""
    both: tuple[Event, ...] = (Backward(((0,),) * ranks), Finish(), ZeroGrad())
    whole = Scenario(ranks, (Parameter((5,), "bfloat16"),), both * 2)
    runs = runs_needed(whole)
    tables = [contributions(replace(whole, sparse=(run, runs))) for run in range(runs)]
    sums = np.array([[batch[0].sum(axis=0) for batch in table] for table in tables])
    assert (sums[:, 0] != sums[:, 1]).any()
    assert all(len(set(of_one.reshape(-1).tolist())) > 2 for of_one in sums)


def test_what_fits_in_one_run_keeps_the_numbers_that_all_differ() -> None:
    scenario = Scenario(2, (Parameter((2,), "bfloat16"), ONE), (Backward(((0, 1), (1, 0))), Finish()))
    assert runs_needed(scenario) == 1
    assert [values.tolist() for values in contributions(scenario)[0]] == [[[1, 3], [15, 25]], [[7], [41]]]


@pytest.mark.parametrize("synchronizations", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_means_that_are_added_to_once_more_stay_exact_in_sparse_runs(ranks: int, synchronizations: int) -> None:
    program = (Backward(((0,),) * ranks), Finish()) * synchronizations
    whole = Scenario(ranks, (Parameter((3,), "bfloat16"),), program)
    runs = runs_needed(whole)
    fits = all(is_exact(replace(whole, sparse=(run, runs))) for run in range(runs))
    assert fits == (capacity(whole, 0) >= 1)
    assert fits or (ranks, synchronizations) in ((6, 3), (8, 3))  # where nothing would do


def test_no_gradient_in_float64_passes_through_float32() -> None:
    for ranks in (1, 2, 3, 4, 5, 6, 8):
        for backwards in (1, 2):
            held: list[Event] = [Backward(((0, 1),) * ranks, synchronize=False)] * (backwards - 1)
            program = (*held, Backward(((0, 1),) * ranks), Finish(), Step())
            scenario = Scenario(ranks, (Parameter((3,), "float64"), ONE), program)
            assert is_exact(scenario)
            wide, narrow = (np.stack([batch[place] for batch in contributions(scenario)]) for place in (0, 1))
            assert (wide.astype(np.float32) != wide).all()
            assert (wide.sum(axis=(0, 1)).astype(np.float32) != wide.sum(axis=(0, 1))).any()
            assert (narrow.astype(np.float32) == narrow).all()


def test_numbers_of_float64_stay_small_where_something_else_makes_gradients_large() -> None:
    plain = Scenario(2, (Parameter((2,), "float64"),), (Backward(((0,), (0,))), Finish()))
    for scenario in (replace(plain, probe="quadratic"), replace(plain, loss_scale=LossScale(2.0))):
        assert [values.tolist() for values in contributions(scenario)[0]] == [[[1, 3], [7, 15]]]


@pytest.mark.parametrize("forwards", [1, 2, 3])
def test_forwards_before_one_backward_share_out_every_coefficient(forwards: int) -> None:
    scenario = Scenario(
        2, (Parameter((2, 3)), Parameter(()), ONE, Parameter((0,))), (Backward(((0, 1, 2),) * 2), Finish())
    )
    (numbers,) = coefficients(scenario, 1)
    shares = by_forward(numbers, forwards)
    assert len(shares) == forwards
    for whole, *parts in zip(numbers, *shares, strict=True):
        assert np.array_equal(np.sum(parts, axis=0), whole)
        assert np.all(np.count_nonzero(parts, axis=0) == 1)
        assert all(part.shape == whole.shape for part in parts)
    assert all(any(part.any() for part in share) for share in shares)


@pytest.mark.parametrize(("ranks", "synchronizations"), [(7, 20), (7, 23), (5, 28), (3, 41)])
def test_contributions_that_no_lattice_holds_are_inexact(ranks: int, synchronizations: int) -> None:
    program = (Backward(((0,),) * ranks), Finish()) * synchronizations
    assert not is_exact(Scenario(ranks, (ONE,), program))
