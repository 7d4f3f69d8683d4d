"""Code that shards only layers which it knows is drawn models that are made of these."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import look_up
from lockstep.properties.models import judge
from lockstep.properties.models.proved import expect
from lockstep.properties.models.run import run
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.ranks.layers import layer_of, weight_read
from lockstep.properties.searching.search import search
from lockstep.properties.tests.scripts import lines
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

RIGHT = ("ShardsLayers", "ShardsLayersTellingNothing", "ShardsLayersUndeclared")
WRONG = ("ShardsLayersThatSum", "ShardsLayersOfRankZero")
MEAN = "test_gradients_equal_the_mean_over_ranks"
STEPS = "test_steps_of_shards_are_steps_of_the_whole"
IN_ORDER = (Backward(((0, 1, 2),) * 2), Finish(), Step())
# A linear layer, an embedding and a layer norm; ranks cannot share the rows of the first evenly.
LAYERS = Scenario(2, (Parameter((3, 2)), Parameter((2, 1)), Parameter((4,))), IN_ORDER, probe="quadratic")


def shape(name: str) -> str:
    return f"lockstep.properties.tests.shapes:{name}"


def trial_of(name: str, world: World) -> Trial:
    """It is constructed on two ranks to see if it shards plain layers."""
    (implementation,) = look_up([shape(name)], world)
    return Trial(implementation, world)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("told", [(2,), (4,), (1, 1), (2, 2), (1, 3), (5, 1)], ids=str)
def test_a_layer_reads_its_weight_and_gets_the_gradient_bit_for_bit(dtype: torch.dtype, told: tuple[int, ...]) -> None:
    for index in range(2):
        weight = nn.Parameter(torch.randn(told).to(dtype))
        layer = layer_of(weight, index)
        assert layer is not None
        assert [*layer.parameters()] == [weight]
        read, coefficients = weight_read(layer, index, told, dtype), torch.randn(told).to(dtype)
        assert torch.equal(read, weight)
        (coefficients * read).sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, coefficients)


def test_no_layer_has_a_scalar_or_an_odd_vector_for_its_weight() -> None:
    for told in ((), (1,), (3,), (0,), (0, 3), (2, 2, 2)):
        assert layer_of(nn.Parameter(torch.zeros(told)), 0) is None


@pytest.mark.parametrize("name", RIGHT)
def test_what_shards_layers_alone_is_seen_to_and_takes_the_steps_of_one_process(sim: World, name: str) -> None:
    trial = trial_of(name, sim)
    assert trial.claims.stage == 3
    assert trial.claims.plain_layers
    found = search(every_law()[STEPS], trial, 10, seed_value=0)
    assert found.failures == []
    assert trial.witnessed[ENDED]


@pytest.mark.parametrize("name", WRONG)
def test_a_script_says_of_pieces_what_is_wrong_with_them(sim: World, name: str) -> None:
    """And nothing is wrong in that of a right class."""
    with pytest.raises(SilentlyWrong):
        every_law()[MEAN].check(trial_of(name, sim), LAYERS)
    right, wrong = (lines(sim, shape(each), LAYERS) for each in ("ShardsLayers", name))
    assert right
    assert not any("WRONG" in line for line in right)
    assert any("WRONG" in line for line in wrong)


def test_who_gathers_a_weight_for_each_use_may_average_what_each_use_gives(sim: World) -> None:
    """Each mean is rounded, and the sum of them, which one unit in the last place shows."""
    scenario = ModelScenario("transformer", twice=True)
    (right,) = look_up([shape("ShardsLayers")], sim)
    found = run(Trial(right, sim), scenario)
    judge.gradients(found, expect(Trial(right, sim), scenario, found.observations[0]), "")
    at_once = Trial(replace(right, claims=Claims()), sim)
    with pytest.raises(SilentlyWrong, match="On rank 0, in step 0, block"):
        judge.gradients(found, expect(at_once, scenario, found.observations[0]), "")
