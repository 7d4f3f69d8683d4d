"""ZeRO on numbers: sharded training against the unsharded step, bit for bit, and against Fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.optimizers import SGD, Adam
from lockstep.oracle.shards import flat, from_shards, join
from lockstep.oracle.tests.examples import examples
from lockstep.oracle.tests.test_zero import RECIPES, plans
from lockstep.oracle.zero import Plan
from lockstep.oracle.zero_step import partition, train, train_unsharded


def quadratic(whole_numbers, scale):
    """The gradient of <c, p * p> / 2 with c distinct per step, micro-batch, rank, parameter and element."""

    def gradient(step, micro_batch, rank, parameters):
        result = {}
        for index, (name, values) in enumerate(parameters.items()):
            salt = 1 + step + 3 * micro_batch + 11 * rank + 101 * index
            positions = np.arange(values.size).reshape(values.shape)
            c = ((positions + 1) * salt) % 509 if whole_numbers else np.sin((positions + 1) * salt)
            result[name] = c * scale * values
        return result

    return gradient


def start(plan):
    shapes = join(plan.layers).shapes
    return {
        name: (1 + np.arange(np.prod(shape)).reshape(shape) + index) / 7
        for index, (name, shape) in enumerate(shapes.items())
    }


@examples(100)
@given(
    plans(divisible=False),
    st.sampled_from([SGD(0.1), SGD(0.1, 0.9), Adam(0.01), Adam(0.01, weight_decay=0.1, decoupled=True)]),
)
def test_sharded_training_equals_unsharded_training_bit_for_bit(plan, optimizer):
    parameters, gradient = start(plan), quadratic(False, 1.0)
    whole, states = train_unsharded(plan, optimizer, parameters, gradient, 3)
    ranks = train(plan, optimizer, parameters, gradient, 3)
    layout = partition(plan)
    size = layout.world_size
    assert any((whole[name] != parameters[name]).any() for name in whole)
    for first in range(0, plan.world_size, size):
        group = ranks[first : first + size]
        pieces = {"parameter": [rank.shard for rank in group]}
        if isinstance(optimizer, Adam):
            pieces |= {kind: [getattr(rank.state, kind) for rank in group] for kind in ("exp_avg", "exp_avg_sq")}
        elif optimizer.momentum:
            pieces |= {"momentum_buffer": [rank.state.momentum_buffer for rank in group]}
        for kind, shards in pieces.items():
            for name, tensor in from_shards(layout, shards).items():
                expected = whole[name] if kind == "parameter" else getattr(states[name], kind)
                assert tensor.tobytes() == expected.tobytes(), (kind, name)
    for rank in ranks:
        assert (rank.parameters == {}) == (plan.stage == 3)
        assert all(tensor.tobytes() == whole[name].tobytes() for name, tensor in rank.parameters.items())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("synchronize_each", [True, False])
def test_one_sgd_step_is_the_mean_gradient_in_exact_arithmetic(stage, synchronize_each):
    """Integers over 2^k: whatever the order of summing, p - lr/N sum of c p, here with Fractions."""
    plan = Plan(
        (flat({"a": (3,)}, 2), flat({"b": (2, 2)}, 2)),
        stage,
        RECIPES[0],
        replicas=2 if stage else 1,
        micro_batches=3,
        synchronize_each=synchronize_each,
    )
    parameters = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([[4.0, 5.0], [6.0, 7.0]])}
    gradient = quadratic(True, 1.0)
    ranks = train(plan, SGD(0.5), parameters, gradient, 1)
    layout = partition(plan)
    result = from_shards(layout, [rank.shard for rank in ranks[: layout.world_size]])
    for name, values in parameters.items():
        for place in np.ndindex(values.shape):
            total = sum(
                Fraction(gradient(0, micro_batch, rank, parameters)[name][place])
                for micro_batch in range(3)
                for rank in range(plan.world_size)
            )
            assert Fraction(result[name][place]) == Fraction(values[place]) - Fraction(1, 2) * total / plan.world_size
