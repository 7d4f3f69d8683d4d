"""Hooks fire in the order that a scenario asks for: the probes drive real autograd, under every implementation."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import PROBES
from lockstep.properties.claims import Claims
from lockstep.properties.strategies import scenarios
from lockstep.properties.strategies.independent import INDEPENDENT
from lockstep.properties.trial import job
from lockstep.worlds.contract import World

UNDER: dict[str, tuple[str, Claims]] = {
    "the module alone": (
        "lockstep.properties.tests.user_code:bare",
        Claims(accumulation=False, several_dtypes=True, unused="untouched"),
    ),
    "naive": ("lockstep.impls.naive:NaiveAccumulation", Claims(several_dtypes=True)),
    "static buckets": (
        "lockstep.impls.static_buckets:StaticBuckets",
        Claims(several_dtypes=True, unused="untouched", bucket_cap=True),
    ),
    "torch DDP": ("lockstep.impls.frameworks.torch_ddp:TorchDDP", Claims(several_dtypes=True, bucket_cap=True)),
    "torch DDP, finding unused": (
        "lockstep.impls.frameworks.torch_ddp:TorchDDPFindUnused",
        Claims(several_dtypes=True, unused="untouched", bucket_cap=True, drops_windows=False),
    ),
    "torch DDP, bucket views": (
        "lockstep.impls.frameworks.torch_ddp:TorchDDPBucketView",
        Claims(several_dtypes=True, bucket_cap=True),
    ),
}


def hooks(world: World, implementation: str, scenario: Scenario) -> list[Any]:
    """By rank, for each micro-batch the parameters in the order in which their gradients became final."""
    outcome = world.run(job(implementation, scenario))
    assert [report.error for report in outcome] == [None] * scenario.world_size
    return [report.result["hooks"] for report in outcome if report.result is not None]


@pytest.mark.parametrize("under", UNDER)
def test_hooks_fire_in_the_order_asked_for(sim: World, under: str) -> None:
    implementation, claims = UNDER[under]
    differing = 0

    @given(scenarios(claims))
    @settings(max_examples=40, backend=INDEPENDENT, deadline=None, derandomize=True)
    def check(scenario: Scenario) -> None:
        nonlocal differing
        assume(scenario.bucket_cap != 0)  # which DDP of torch 2.11 refuses
        fired = hooks(sim, implementation, scenario)
        batches = range(len(scenario.microbatches))
        assert fired == [[list(scenario.order(batch, r)) for batch in batches] for r in range(scenario.world_size)]
        differing += any(mine != fired[0] for mine in fired)

    check()
    assert differing > 5


@pytest.mark.parametrize("probe", PROBES)
@given(number=st.integers(2, 6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_hooks_fire_in_any_order_of_many_parameters_on_both_probes(
    sim: World, probe: str, number: int, data: st.DataObject
) -> None:
    orders = tuple(tuple(data.draw(st.permutations(range(number)))) for _ in range(2))
    scenario = Scenario(2, (Parameter((1,)),) * number, (Backward(orders), Finish()), probe=probe)
    assert hooks(sim, "lockstep.properties.tests.user_code:bare", scenario) == [[list(order)] for order in orders]


@pytest.mark.parametrize("implementation", [implementation for implementation, _ in UNDER.values()])
@pytest.mark.parametrize("probe", PROBES)
def test_hooks_fire_in_the_order_asked_for_on_real_processes_too(gloo: World, implementation: str, probe: str) -> None:
    orders = ((2, 0, 1), (1, 2, 0))
    batches = (Backward(orders), Finish(), Backward(orders[::-1]), Finish())
    scenario = Scenario(2, (Parameter((2,)), Parameter(()), Parameter((3,))), batches, probe=probe)
    assert hooks(gloo, implementation, scenario) == [[[2, 0, 1], [1, 2, 0]], [[1, 2, 0], [2, 0, 1]]]


def test_several_samples_on_a_rank_reach_parameters_in_the_order_of_first_use(sim: World) -> None:
    scenario = Scenario(2, (Parameter((1,)),) * 3, (Backward(((2,), (0, 2), (1, 0), (2, 1))), Finish()))
    assert hooks(sim, "lockstep.properties.tests.user_code:bare", scenario) == [[[2, 0]], [[1, 0, 2]]]
