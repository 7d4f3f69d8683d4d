"""A user's own model, with `--model`: the laws on real models, on that one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import Unusable, look_up
from lockstep.properties.models.on_yours import YourModel, try_out_model
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.searching.search import search
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import ENDED, Trial
from lockstep.worlds.contract import World

OWN = "lockstep.properties.tests.own_models"
SHAPES = "lockstep.properties.tests.shapes"
MODEL = YourModel(f"{OWN}:make", has_buffers=True)
EVERYTHING = Claims(buffers="initial")
ABOUT = {law.number: law for law in every_law().values() if MODEL.is_held(law, EVERYTHING)}


def headlines(trial: Trial, number: str, examples: int) -> list[str]:
    """What is wrong, by a law on the model that has everything."""
    found = search(MODEL.on(ABOUT[number]), trial, examples, seed_value=0)
    assert found.failures or trial.witnessed[ENDED]
    return [failure.broken.headline for failure in found.failures]


@pytest.mark.parametrize("name", [f"{OWN}:Whole", "lockstep.impls.frameworks.torch_ddp:TorchDDPFindUnused"])
@pytest.mark.parametrize("number", ["P1", "P3", "P4", "P11", "P12", "P16"])
def test_what_is_right_is_right_on_it(sim: World, name: str, number: str) -> None:
    under_test = trial_of(name, sim)
    if MODEL.is_held(ABOUT[number], under_test.claims):
        assert headlines(under_test, number, 5) == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("P1", "wide.weight.grad[0,0] is "),
        ("P1", "The first module whose gradient differs is wide."),
        ("P4", "The first module whose parameter differs is wide."),
        ("P12", "The first module whose output differs is wide."),
    ],
)
def test_what_is_wrong_on_it_alone_is_found_and_its_module_named(sim: World, number: str, words: str) -> None:
    (told,) = headlines(trial_of(f"{OWN}:Forgets", sim), number, 10)
    assert words in told


WRONG: Mapping[str, str] = {
    "large": "the model has 1,002,001 elements in its parameters; from 1 to 1,000,000 are held against the laws",
    "unsteady": "two runs from one seed differ in the loss",
    "gives_a_list": "make() returns a module and a function",
    "raises": "KeyError: 'no data'",
    "nothing": "has no attribute 'nothing'",
    "Net": "make() returns a module and a function",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_followed_is_told_in_one_line(sim: World, name: str) -> None:
    with pytest.raises(Unusable) as told:
        try_out_model(f"{OWN}:{name}", [], sim)
    assert str(told.value).startswith(f"--model {OWN}:{name}: ")
    assert WRONG[name] in str(told.value)
    assert "\n" not in str(told.value)


def test_who_wraps_a_model_with_buffers_says_what_becomes_of_them(sim: World) -> None:
    with pytest.raises(
        Unusable, match="the model has buffers, and Finish does not say what becomes of them; it claims"
    ):
        try_out_model(MODEL.name, look_up([f"{SHAPES}:Finish"], sim), sim)
    assert try_out_model(MODEL.name, look_up([f"{OWN}:Whole"], sim), sim) == MODEL


def test_a_scenario_of_it_says_how_it_is_made() -> None:
    made = ModelScenario("yours", yours="a:b")
    assert eval(repr(made), {"ModelScenario": ModelScenario}) == ModelScenario.from_json(made.to_json()) == made
    with pytest.raises(ValueError, match="the model 'yours', and it alone, has a name in yours, not ''"):
        replace(made, yours="")


SHARDED = (("ShardsLayers", ""), ("ShardsLayersThatSum", "not the mean"), ("ShardsLayersOfRankZero", "not the mean"))


@pytest.mark.parametrize(("name", "words"), SHARDED)
def test_code_that_shards_plain_layers_is_held_on_real_models_without_an_adapter(
    sim: World, name: str, words: str
) -> None:
    (implementation,) = look_up([f"{SHAPES}:{name}"], sim)
    assert implementation.claims.stage == 3
    found: list[Any] = search(ABOUT["P1"], Trial(implementation, sim), 20, seed_value=0).failures
    assert bool(found) == bool(words)
    assert all(words in failure.broken.headline for failure in found)


def test_pieces_that_no_method_tells_are_put_together_and_others_are_told_by_their_shape(sim: World) -> None:
    under_test = trial_of(f"{SHAPES}:ShardsLayersTellingNothing", sim)
    assert search(ABOUT["P1"], under_test, 10, seed_value=0).failures == []
    assert under_test.witnessed[ENDED]
    as_whole = trial_of(f"{SHAPES}:ShardsLayersUndeclared", sim)  # looked at in this process, as if it were whole
    (failure, *_) = search(ABOUT["P1"], as_whole, 5, seed_value=0).failures
    assert "is of shape (2, 3) where it must be of shape (4, 3). Code that holds parameters in shards claims" in (
        failure.broken.headline
    )
