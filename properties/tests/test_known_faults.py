"""The wrong implementations that ship are found, shrunk to what makes them wrong, and wrong for no other reason."""

from dataclasses import replace

import pytest
from hypothesis import settings

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import (
    test_accumulation,
    test_collectives,
    test_invariance,
    test_mean,
    test_replicas,
    test_sharding,
)
from lockstep.properties.implementations import CORRECT, WRONG
from lockstep.properties.law import Law
from lockstep.properties.searching.search import search
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import ENDED
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

SEEDS = range(20 if settings.get_current_profile_name().startswith("nightly") else 3)
ONE = Parameter((1,))
MEAN: Law = test_mean.test_gradients_equal_the_mean_over_ranks.law  # type: ignore[attr-defined]
STEPS: Law = test_sharding.test_steps_of_shards_are_steps_of_the_whole.law  # type: ignore[attr-defined]
REPLICAS: Law = test_replicas.test_replicas_are_bitwise_equal_after_construction_and_after_every_step.law  # type: ignore[attr-defined]
COLLECTIVES: Law = test_collectives.test_every_rank_issues_the_same_collectives.law  # type: ignore[attr-defined]
CAP: Law = test_invariance.test_the_result_does_not_depend_on_the_bucket_cap.law  # type: ignore[attr-defined]
ACCUMULATION: Law = test_accumulation.test_no_sync_accumulates_and_then_counts_once.law  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WRONG)
def test_every_search_ends_in_the_smallest_program_that_shows_the_fault(sim: World, name: str) -> None:
    """Two ranks, two parameters of one element, one backward that reaches them in different orders."""
    under_test = trial_of(name, sim)
    assert under_test.implementation.known_fault
    smallest = Scenario(2, (ONE, ONE), (Backward(((0, 1), (1, 0))), Finish()))
    for seed in SEEDS:
        (failure,) = search(MEAN, under_test, 300, seed_value=seed, only=SilentlyWrong).failures
        assert isinstance(failure.broken, SilentlyWrong)
        assert failure.drawn == failure.broken.scenario == smallest, f"seed {seed}"


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("law", [MEAN, REPLICAS, COLLECTIVES, ACCUMULATION], ids=lambda law: law.name)
def test_the_wrong_ones_hold_where_hooks_fire_in_one_order_on_all_ranks(sim: World, name: str, law: Law) -> None:
    """So they are wrong for the reason that is given, and for no other."""
    under_test = trial_of(name, sim)
    has = ("accumulation",) if law is ACCUMULATION else ()
    one_order = replace(law, draws=lambda claims: exact_scenarios(claims, "same on all ranks", has))
    found = search(one_order, under_test, 40, seed_value=0)  # some are drawn twice, and run once
    assert found.failures == []
    assert found.refusals == []
    assert found.examples >= 30
    assert under_test.witnessed[ENDED] >= 30


@pytest.mark.parametrize("law", [MEAN, STEPS], ids=lambda law: law.name)
def test_what_gathers_late_steps_right_in_every_layout(sim: World, law: Law) -> None:
    """Only evaluations read what is stale."""
    found = search(law, trial_of("lockstep.impls.faults.evaluating:GathersToTrain", sim), 40, seed_value=0)
    assert found.failures == []


@pytest.mark.parametrize("law", [MEAN, REPLICAS], ids=lambda law: law.name)
def test_an_implementation_that_never_synchronizes_is_found(sim: World, law: Law) -> None:
    under_test = trial_of("lockstep.properties.tests.user_code:NeverSynchronizes", sim)
    for seed in SEEDS[:2]:
        (failure,) = search(law, under_test, 100, seed_value=seed).failures
        assert isinstance(failure.broken, SilentlyWrong)
        assert failure.broken.scenario.world_size == 2
        assert failure.broken.scenario.parameters == (ONE,)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_found_on_the_simulated_world_is_wrong_on_real_processes_too(
    sim: World, gloo: World, name: str
) -> None:
    """The same bits are wrong, where nothing crashes."""
    smallest = Scenario(2, (ONE, ONE), (Backward(((0, 1), (1, 0))), Finish()))
    shown = []
    for world in (sim, gloo):
        with pytest.raises(SilentlyWrong) as broken:
            MEAN.check(trial_of(name, world), smallest)
        shown.append(broken.value)
    assert shown[0].same_as(shown[1])


@pytest.mark.parametrize("name", CORRECT)
def test_what_is_said_to_be_correct_has_no_known_fault(sim: World, name: str) -> None:
    assert trial_of(name, sim).implementation.known_fault is None
