"""Shards stepped by kernels have the bits of shards stepped by torch, on exact data."""

from typing import Any

import pytest

from lockstep.oracle.events import Backward, Finish, Step, ZeroGrad
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.model import Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.implementations import look_up
from lockstep.properties.tests.test_oracle_against_torch_programs import disagreements
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import World

STAGES = [("lockstep.impls.zero1:Zero1", "KernelZero1"), ("lockstep.impls.zero3:Zero3", "KernelZero3")]
ITERATION = (Backward(((0, 1), (1, 0), (0, 1))), Finish(), Step(), ZeroGrad())


def in_sixteen_bits(optimizer: str, **options: Any) -> Scenario:
    model = (Parameter((5,), "bfloat16"), Parameter((2, 3), "float16"))
    values = Hyperparameters(**options)
    return Scenario(3, model, ITERATION * 2, optimizer=optimizer, hyperparameters=values, masters=True)


@pytest.mark.parametrize(("plain", "kernels"), STAGES)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_sgd_by_kernels_gives_the_bits_of_torch(of_kernels: World, plain: str, kernels: str, momentum: float) -> None:
    scenario = in_sixteen_bits("SGD", momentum=momentum, weight_decay=0.5)
    implementations = look_up([plain, f"lockstep.properties.tests.kernel_zero:{kernels}"], of_kernels)
    trials = [Trial(each, of_kernels) for each in implementations]
    one, other = (trial.run(scenario).observations for trial in trials)
    for mine, theirs in zip(one, other, strict=True):
        for place, values in mine["parameters"].items():
            assert [value.tobytes() for value in values] == [each.tobytes() for each in theirs["parameters"][place]]
        for place, states in mine["states"].items():
            assert [sorted(state) for state in states] == [sorted(state) for state in theirs["states"][place]]


@pytest.mark.parametrize("kernels", [kernels for _, kernels in STAGES])
def test_adamw_by_kernels_lies_in_what_the_interpreter_allows(of_kernels: World, kernels: str) -> None:
    scenario = in_sixteen_bits("AdamW", betas=(0.5, 0.75))
    optimizers = "torch cpu" if of_kernels.device == "cpu" else "any"
    expected = interpret(scenario, "sum then divide", "zero", optimizers)
    (implementation,) = look_up([f"lockstep.properties.tests.kernel_zero:{kernels}"], of_kernels)
    for rank, seen in enumerate(Trial(implementation, of_kernels).run(scenario).observations):
        assert disagreements(seen, expected, rank) == []
