"""The shipped steps have not only enclosed results but predicted ones: unfused, correctly rounded, bit for bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.optimizer_bits import adam_step_bits, sgd_step_bits
from lockstep.oracle.optimizers import SGD, AdamState, SGDState
from lockstep.properties.kernels import steps
from lockstep.properties.kernels.reference import Array
from lockstep.properties.kernels.under_test import look_up_kernels
from lockstep.properties.kernels.values import elements
from lockstep.worlds.contract import World


def predicted(shard: steps.Shard, function: str) -> tuple[Array, Any]:
    optimizer: Any = steps.OPTIMIZERS[shard.settings][function]
    value = elements("general", shard.count, "float32", 1)
    zero = np.zeros(shard.count, np.float32)
    state: Any = SGDState() if isinstance(optimizer, SGD) else AdamState(zero, zero)
    step: Any = sgd_step_bits if isinstance(optimizer, SGD) else adam_step_bits
    for t in range(1, shard.steps + 1):
        value, state = step(optimizer, value, steps.gradient(shard, t).astype(np.float32), state, fma=False)
    return value, state


@pytest.mark.parametrize("settings", range(len(steps.OPTIMIZERS)))
@pytest.mark.parametrize("grad", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", ["sgd_step", "adamw_step"])
def test_masters_and_state_are_the_oracles_bits(sim: World, function: str, grad: str, settings: int) -> None:
    kernels = look_up_kernels("lockstep.impls.kernels.suite:Kernels", sim)
    shard = steps.Shard(4097, "bfloat16", grad, steps=4, settings=settings, coefficient=0.3, scale=1 / 3)
    for cuts in ((), (1, 2048)):
        _, master, *states = steps.run(kernels, replace(shard, cuts=cuts), function)
        value, state = predicted(shard, function)
        assert master.tobytes() == value.tobytes()
        wanted = [getattr(state, name) for name in ("exp_avg", "exp_avg_sq", "momentum_buffer") if hasattr(state, name)]
        for got, bits in zip(states, wanted, strict=False):
            assert got.tobytes() == bits.tobytes()
