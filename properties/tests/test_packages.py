"""Loaders and training loops of packages that Lockstep does not need: each keeps its claims, where it is installed."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import strategies as st

from lockstep.impls.frameworks import torchft_ddp
from lockstep.properties import test_models
from lockstep.properties.catalogue import every_law
from lockstep.properties.law import concerns, law_of
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.searching.search import search
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

PACKAGES = {
    "torchdata_data:TorchdataLoader": "torchdata",
    "accelerate_data:AccelerateLoader": "accelerate",
    "fabric_data:FabricLoader": "lightning_fabric",
    "accelerate_loop:AccelerateTokens": "accelerate",
    "fabric_loop:FabricLoop": "lightning_fabric",
    "fabric_loop:FabricTokens": "lightning_fabric",
    "transformers_loop:TrainerTokens": "transformers",
    "transformers_loop:TrainerMicroBatches": "transformers",
}
# In `tox -e frameworks-transformers` alone: pipegoose, which `tox -e frameworks` installs, needs an older one.
LEAST = {"transformers": "5"}
FIRST = "test_a_window_is_one_step_on_the_mean_that_is_claimed"


@pytest.mark.parametrize("name", PACKAGES)
def test_it_keeps_what_it_claims(request: pytest.FixtureRequest, name: str) -> None:
    pytest.importorskip(PACKAGES[name], minversion=LEAST.get(PACKAGES[name]))
    gloo: World = request.getfixturevalue("gloo")
    trial = trial_of(f"lockstep.impls.frameworks.{name}", gloo)
    for law in every_law().values():
        if concerns(law, trial.claims):
            found = search(law, trial, 10, seed_value=0)
            assert (found.failures, found.refusals) == ([], []), law.name


def test_accelerate_divides_a_last_window_as_if_it_were_full(request: pytest.FixtureRequest) -> None:
    """The only law that its `accumulate` breaks; docs/findings has the script."""
    pytest.importorskip("accelerate")
    gloo: World = request.getfixturevalue("gloo")
    trial = trial_of("lockstep.impls.frameworks.accelerate_loop:AccelerateLoop", gloo)
    broken = {}
    for law in every_law().values():
        if concerns(law, trial.claims):
            broken[law.name] = [type(each.broken) for each in search(law, trial, 30, seed_value=0).failures]
    assert {name: kinds for name, kinds in broken.items() if kinds} == {FIRST: [SilentlyWrong]}


@pytest.mark.parametrize("name", ["FairscaleSharded", "FairscaleUnbucketed"])
def test_fairscale_follows_what_is_trained_again(sim: World, name: str) -> None:
    """With the options of its adapter; docs/findings has the script of the option with which it does not."""
    pytest.importorskip("fairscale")
    trial = trial_of(f"lockstep.impls.frameworks.fairscale_sharded:{name}", sim)
    law = law_of(test_models.test_replicas_of_a_real_model_stay_bitwise_equal)
    thawed = st.just(ModelScenario(local=(0, 0), frozen="second", thaws=1))
    found = search(law, trial, 1, seed_value=0, draws=thawed)
    assert (found.examples, found.failures) == (1, [])


def test_an_error_of_torchfts_all_reduce_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchft's own manager keeps it for `should_commit`, and the gradients stay as they are."""
    pytest.importorskip("torchft")
    no_group = SimpleNamespace(group=SimpleNamespace(WORLD=None), get_world_size=lambda: 1)
    monkeypatch.setattr(torchft_ddp, "dist", no_group)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'allreduce'"):
        torchft_ddp.manager().allreduce(torch.ones(1))
