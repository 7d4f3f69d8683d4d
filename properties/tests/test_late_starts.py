"""Code that makes ranks equal in the first forward is right if it claims that, and is told of the claim if not."""

from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, Evaluate, Finish, SaveAndLoad, Step
from lockstep.oracle.model import Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import look_up
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.reports.failure import story
from lockstep.properties.searching.search import search
from lockstep.properties.test_checkpoints import between_worlds
from lockstep.properties.tests.scripts import lines
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

LAWS = every_law()
LATE, NEVER = "lockstep.impls.twins.starts:StartsAtTheFirstForward", "lockstep.impls.faults.start:NoBroadcast"
SEEDS = "lockstep.impls.faults.random_numbers:SeedsAllRanksAlike"
REPLICATE = "lockstep.impls.frameworks.replicate:Replicate"
START = "test_every_rank_starts_with_the_parameters_of_rank_0"
SOME = (START, "test_saving_changes_nothing", "test_no_sync_accumulates_and_then_counts_once")
REAL = "test_replicas_of_a_real_model_stay_bitwise_equal"
HALVES = (Parameter((1,), "bfloat16"), Parameter((2,)))
SYNCHRONIZED = (Backward(((0, 1), (1, 0))), Finish(), Step())
MASTERS = Scenario(
    2,
    HALVES,
    (Evaluate(), Backward(((0, 1), (1, 0)), False), *SYNCHRONIZED, SaveAndLoad(), *SYNCHRONIZED),
    hyperparameters=Hyperparameters(momentum=0.5),
    masters=True,
)


def trial(name: str, world: World, equal_from: str) -> Trial:
    (found,) = look_up([name], world)
    return Trial(replace(found, claims=replace(found.claims, equal_from=equal_from)), world)


@pytest.mark.parametrize("law", SOME)
def test_torchs_replicate_is_right_on_gloo(gloo: World, law: str) -> None:
    under_test = trial(REPLICATE, gloo, EQUAL_FROM[1])
    assert search(LAWS[law], under_test, 5, seed_value=0).failures == []
    assert under_test.witnessed[ENDED]


@pytest.mark.parametrize("name", [LATE, REPLICATE])
@pytest.mark.parametrize("law", [START, REAL])
def test_who_does_not_claim_to_start_late_is_wrong_from_construction_on(sim: World, name: str, law: str) -> None:
    failures = search(LAWS[law], trial(name, sim, EQUAL_FROM[0]), 50, seed_value=0, shrink=False).failures
    assert "after construction" in failures[0].broken.headline


def test_who_claims_it_and_does_it_never_is_wrong_after_the_first_forward(sim: World) -> None:
    under_test = trial(NEVER, sim, EQUAL_FROM[1])
    for law, drawn in ((START, MASTERS), (REAL, ModelScenario("mlp"))):
        with pytest.raises(SilentlyWrong, match="after the first forward"):
            LAWS[law].check(under_test, drawn)


@pytest.mark.parametrize(("name", "hinted"), [(LATE, True), (REPLICATE, True), (NEVER, False)])
def test_the_report_names_the_claim_where_it_would_be_kept(sim: World, name: str, hinted: bool) -> None:
    under_test = trial(name, sim, EQUAL_FROM[0])
    (failure, *_) = search(LAWS[START], under_test, 50, seed_value=0).failures
    words = " ".join(" ".join(story(LAWS[START], under_test, diagnose(under_test, failure, to_the_core=False))).split())
    hint = "after the first forward every rank has rank 0's values. If that is intended, claim"
    assert (f'{hint} "equal_from": "first forward".' in words) == hinted


def test_no_other_difference_at_the_start_is_taken_for_a_late_one(sim: World) -> None:
    law, under_test = LAWS["test_random_numbers_go_on_where_the_caller_left_them"], trial(SEEDS, sim, EQUAL_FROM[0])
    (failure, *_) = search(law, under_test, 5, seed_value=0).failures
    assert failure.broken.difference is not None
    assert failure.broken.difference.place == -1
    assert "after the first forward every rank" not in " ".join(
        " ".join(story(law, under_test, diagnose(under_test, failure, to_the_core=False))).split()
    )


def test_its_script_makes_masters_once_ranks_are_equal(sim: World) -> None:
    printed = lines(sim, LATE, MASTERS)
    assert [line for line in printed if not line.endswith(": right")] == []
    assert sum("the value of a" in line for line in printed) > 2
    in_no_sync = replace(MASTERS, program=MASTERS.program[1:])
    assert any(
        "WRONG" in line for line in lines(sim, "lockstep.impls.faults.start:StartsWhenItSynchronizes", in_no_sync)
    )


def test_it_may_be_saved_on_one_number_of_ranks_and_loaded_on_another(sim: World) -> None:
    """What comes from a file is not what rank 0 began with."""
    under_test = trial(LATE, sim, EQUAL_FROM[1])
    law = "test_a_state_saved_on_n_ranks_goes_on_on_any_other_number"
    assert LAWS[law].draws is between_worlds
    assert search(LAWS[law], under_test, 10, seed_value=0).failures == []
    assert under_test.witnessed[ENDED]
