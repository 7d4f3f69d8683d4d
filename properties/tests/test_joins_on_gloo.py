"""What only a real backend can show of joins: torch's DDP, asked to divide by the ranks that remain."""

import itertools
from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, EndJoin, Finish, Join, Step, ZeroGrad
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.implementations import look_up
from lockstep.properties.judging import judge
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

LEAVING = ((0,), (0, 2))  # rank 0 has no micro-batch at all, rank 2 has one, rank 1 two with one inside no_sync


def windows(*divide_by: str) -> Scenario:
    """Windows that divide so, each with a step of all ranks after it."""
    one, two = (tuple(() if rank in gone else (0, 1) for rank in range(3)) for gone in LEAVING)
    step = (Finish(), Step(), ZeroGrad())
    accumulated = (Backward(two, False, gone=LEAVING[1]), Backward(two, gone=LEAVING[1]))
    window = (Backward(one, gone=LEAVING[0]), *step, *accumulated, *step, EndJoin(), Backward(((0, 1),) * 3), *step)
    program = [event for divisor in divide_by for event in (Join(divisor), *window)]
    return Scenario(3, (Parameter((2,)), Parameter((3,))), tuple(program))


@pytest.mark.parametrize("divide_by", list(itertools.product(DIVISORS, repeat=2)), ids=" then ".join)
@pytest.mark.parametrize("name", ["lockstep.impls.frameworks.torch_ddp:TorchDDP", "lockstep.impls.joined:Joined"])
def test_either_mean_is_right_on_gloo_and_after_the_other(gloo: World, name: str, divide_by: tuple[str, ...]) -> None:
    (implementation,) = look_up([name], gloo)
    implementation = replace(implementation, claims=replace(implementation.claims, joins=divide_by))
    trial, scenario = Trial(implementation, gloo), windows(*divide_by)
    judge.values_equal(*trial.run_and_expect(scenario), "Wrong.")


def test_a_hook_that_divides_by_itself_does_not_know_how_many_ranks_remain(gloo: World) -> None:
    (implementation,) = look_up(["lockstep.impls.frameworks.torch_ddp:TorchDDPHook"], gloo)
    implementation = replace(implementation, claims=replace(implementation.claims, joins=DIVISORS))
    trial, scenario = Trial(implementation, gloo), windows("remaining ranks")
    with pytest.raises(SilentlyWrong):
        judge.values_equal(*trial.run_and_expect(scenario), "Wrong.")
