"""Sharded optimizers of the usual shape are met as they stand, and what is wrong with them is found."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep.impls.owned_parameters import OwnedParameters
from lockstep.oracle.events import Backward, Finish, SaveAndLoad, SetHyperparameters, Step, ZeroGrad
from lockstep.oracle.model import Group, Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import Unusable, as_found, look_up, try_out
from lockstep.properties.law import concerns
from lockstep.properties.ranks.optimizers import plain_argument
from lockstep.properties.running.probing import alternatives
from lockstep.properties.searching.search import search
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.within import few_parameters
from lockstep.properties.tests import user_optimizers
from lockstep.properties.tests.scripts import lines
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import LawBroken, SilentlyWrong
from lockstep.worlds.contract import World

USER = "lockstep.properties.tests.user_optimizers"
LAWS = every_law()
STEPS = "test_every_step_leaves_the_parameters_and_state_of_one_process"
SHARDS = "test_steps_of_shards_are_steps_of_the_whole"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"
SAVED = "test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted"
MOVED = "test_a_state_saved_on_n_ranks_goes_on_on_any_other_number"
OPTIONS = "test_hyper_parameters_changed_between_steps_take_effect"
CLASSES = "test_steps_of_any_claimed_class_have_the_bits_of_the_plain_optimizer"


@pytest.mark.parametrize(
    ("implementation", "argument"),
    [
        (user_optimizers.Coursework, "optimizer_cls"),
        (user_optimizers.NoOptimizerOfTorchs, "base_optimizer"),
        (user_optimizers.in_turn, "optim_cls"),
        (user_optimizers.with_a_keyword, "optimizer_cls"),
        (user_optimizers.of_torch, "optimizer_class"),
        (torch.optim.SGD, ""),
        (torch.optim.Muon, ""),
        (torch.nn.parallel.DistributedDataParallel, ""),
        (lambda module, optimizer: module, ""),
        (len, ""),
    ],
)
def test_the_shape_is_known_by_the_arguments_of_the_constructor(implementation: Any, argument: str) -> None:
    assert plain_argument(implementation) == argument


@pytest.mark.parametrize("name", ["OfMuonAndOthers", "NoOptimizerOfTorchs", "in_turn", "with_a_keyword"])
def test_what_is_right_passes_without_an_adapter(sim: World, name: str) -> None:
    found = look_up([f"{USER}:{name}"], sim)
    try_out(found, sim)
    held = 0
    for law in LAWS.values():
        under_test = Trial(found[0], sim)
        if concerns(law, under_test.claims):
            assert search(law, under_test, 3, seed_value=0).failures == [], law.name
            held += under_test.witnessed[ENDED] > 0
    assert held > 15


def test_torchs_own_is_met_as_it_stands(sim: World) -> None:
    """It steps and saves rightly where all parameters are trained and have one dtype."""
    (found,) = look_up([f"{USER}:of_torch"], sim)
    assert found.claims.saved_by == "rank 0"
    claims = {"reloads": False, "freezing": False, "unused": None}
    (found,) = look_up([f"{USER}:of_torch"], sim, claims)
    for law in (STEPS, SHARDS, OPTIONS, SAVED, MOVED):
        assert search(LAWS[law], Trial(found, sim), 15, seed_value=0).failures == [], law


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("NeverBroadcasts", REPLICAS),
        ("BroadcastsFirst", STEPS),
        ("StepsItsOwnGradients", SHARDS),
        ("ZeroesItsOwn", STEPS),
        ("SavesTheGroupsAlone", SAVED),
        ("Coursework", OPTIONS),
        ("NeedsOneEachUnasked", STEPS),
        ("WaitsInItsStep", STEPS),
    ],
)
def test_what_is_wrong_is_found(sim: World, name: str, law: str) -> None:
    found = search(LAWS[law], trial_of(f"{USER}:{name}", sim), 100, seed_value=0, shrink=False)
    assert found.failures, found.examples


@pytest.mark.parametrize("world", ["sim", "gloo"])
def test_a_class_is_checked_from_end_to_end(world: str, tmp_path: Path) -> None:
    """On real processes too; and with a script."""
    examples = {"sim": 8, "gloo": 40}[world]
    asked: dict[str, Any] = {"world": world, "examples": examples, "seed": 1, "report": tmp_path}
    wrong = lockstep.check(user_optimizers.NeverBroadcasts, laws="replicas are bitwise equal", **asked)
    (failure,) = wrong.failures
    assert failure.verdict == "silently wrong"
    assert failure.script is not None
    assert "optimizer = NeverBroadcasts([" in failure.script.read_text()
    right = lockstep.check(OwnedParameters, laws="replicas are bitwise equal", **asked)
    assert right.passed, str(right)


def test_whether_a_step_takes_the_mean_is_tried_out(sim: World) -> None:
    names = ("AveragesItself", "OfMuonAndOthers", "Coursework", "WaitsInItsStep")
    found = look_up([f"{USER}:{name}" for name in names], sim)
    assert [each.claims.averages_in_step for each in found] == [True, False, False, False]
    assert found[0].claims.unused is None  # or each rank would wait for what others have no gradient of
    assert "its step averages gradients" in as_found(found[0])
    assert "gradients are averaged before its step" in as_found(found[1])
    for law in (STEPS, SHARDS, REPLICAS):
        assert search(LAWS[law], Trial(found[0], sim), 15, seed_value=0).failures == []


@pytest.mark.parametrize("law", [name for name in LAWS if name not in (MOVED, CLASSES)])
def test_ranks_have_as_many_parameters_as_is_claimed(sim: World, law: str) -> None:
    """Whatever a law draws. What cannot have a rank that owns nothing then holds."""
    under_test = trial_of(f"{USER}:NeedsOneEach", sim)
    if concerns(LAWS[law], under_test.claims):
        assert search(LAWS[law], under_test, 6, seed_value=0).failures == []
        assert under_test.witnessed[ENDED]


def test_fewer_parameters_than_that_are_not_drawn() -> None:
    claims = Claims(parameters_per_rank=1, several_optimizers=False)
    drawn = sample(exact_scenarios(claims, has=("step",)), 60)
    assert not any(few_parameters(claims, scenario) for scenario in drawn)
    assert {scenario.world_size for scenario in drawn} > {2, 3}
    with pytest.raises(ValueError, match="parameters_per_rank is from 0 to 2, not 3"):
        Claims(parameters_per_rank=3, several_optimizers=False)
    with pytest.raises(ValueError, match="parameters_per_rank goes with no freezing, unfreezing or several_optimizers"):
        Claims(parameters_per_rank=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ClaimsAClassThatIsNone", "claims: optimizers: there is no torch.optim:Moun: "),
        ("ClaimsALocalClass", "claims: make.<locals>.Made is defined inside a function; define it in a module"),
    ],
)
def test_a_class_that_cannot_be_found_is_told_in_one_line(sim: World, name: str, words: str) -> None:
    with pytest.raises(Unusable, match=re.escape(words)) as refused:
        look_up([f"{USER}:{name}"], sim)
    assert "\n" not in str(refused.value)


def test_an_optimizer_with_a_rule_of_its_own_is_held_against_the_class_that_it_names(sim: World) -> None:
    right, wrong = look_up([f"{USER}:DistributedLion", f"{USER}:DistributedLionOfOneRank"], sim)
    assert [name for name, law in LAWS.items() if concerns(law, right.claims)] == [CLASSES]
    assert search(LAWS[CLASSES], Trial(right, sim), 20, seed_value=0).failures == []
    assert search(LAWS[CLASSES], Trial(wrong, sim), 20, seed_value=0, shrink=False).failures
    with pytest.raises(Unusable, match=re.escape("optimizers is a tuple such as (torch.optim.Muon,)")):
        look_up([f"{USER}:SaysNotWhoseRule"], sim)


def test_an_optimizer_that_needs_more_than_parameters_and_a_class_is_told_in_one_line(sim: World) -> None:
    words = "it is called as NeedsARank(groups, optimizer_cls=SGD, lr=0.5), and "
    with pytest.raises(Unusable, match=re.escape(words)) as refused:
        try_out(look_up([f"{USER}:NeedsARank"], sim), sim)
    assert "missing 1 required positional argument: 'rank'; name a function" in str(refused.value)


def test_claims_on_optimizers_are_for_optimizers_alone(sim: World) -> None:
    for claim in ({"closures": True}, {"optimizers": (torch.optim.Muon,)}, {"saved_by": "rank 0"}):
        with pytest.raises(Unusable, match="is for sharded optimizers, made of parameters and a class of optimizers"):
            look_up(["lockstep.impls.naive:NaiveAccumulation"], sim, claim)


def test_what_wraps_a_model_is_not_tried_out_on_an_optimizer(sim: World) -> None:
    found = trial_of(f"{USER}:OfMuonAndOthers", sim).implementation
    probed = {law.name for law in LAWS.values() if alternatives(law, found)}
    assert probed == {
        "test_a_tensor_of_two_names_is_one",
        "test_a_mean_that_some_ranks_lack_is_stepped_like_any_other",
    }


WINDOW = (ZeroGrad(), Backward(((0, 1), (1, 0))), Finish(), Step())
FIRST = (Backward(((0,), (0,))), Finish(), Step())
RATE = SetHyperparameters(Hyperparameters(learning_rate=0.25))
PAIR = (Parameter((2,)), Parameter((3,)))
EVERYTHING = Scenario(2, PAIR, (*FIRST, *WINDOW, RATE, SaveAndLoad(), *WINDOW), groups=(Group((1,)),), optimizer="Adam")
PLAIN = Scenario(2, PAIR, (*FIRST, *WINDOW, RATE, *WINDOW), groups=(Group((1,)),))


@pytest.mark.parametrize(
    ("scenario", "how"),
    [
        (EVERYTHING, {}),
        (PLAIN, {"closures": True}),
        (PLAIN, {"added": 6}),
        (PLAIN, {"scheduled": True}),
    ],
)
@pytest.mark.parametrize("name", ["OfMuonAndOthers", "of_torch", "BroadcastsFirst"])
def test_scripts_show_it_with_torch_alone(sim: World, scenario: Scenario, how: dict[str, Any], name: str) -> None:
    told = lines(sim, f"{USER}:{name}", scenario, **how)
    assert any("the value of a is" in line for line in told)
    wrong = [line for line in told if "WRONG" in line]
    assert bool(wrong) == (name == "BroadcastsFirst"), wrong[:3]


def test_a_script_of_another_class_prints_what_it_leaves(sim: World) -> None:
    told = lines(sim, f"{USER}:OfMuonAndOthers", PLAIN, optimizer="torch.optim:RMSprop")
    assert told
    assert not any("WRONG" in line for line in told)


def test_a_failure_names_the_class_of_the_optimizer(sim: World) -> None:
    fault = trial_of("lockstep.impls.faults.optimizers:RowsOfMuon", sim)
    failure = search(LAWS[CLASSES], fault, 100, seed_value=0, shrink=False, only=SilentlyWrong).failures[0]
    assert "Steps are not those of the plain torch.optim" in failure.broken.headline
    assert isinstance(failure.broken, LawBroken)
    assert failure.broken.choices["optimizer"].endswith(":Muon")
