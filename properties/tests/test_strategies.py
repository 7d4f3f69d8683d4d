"""What the strategies can produce, what they shrink to, and how much of what they draw is of use."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings

from oracle.formats import FORMATS
from oracle.interpreter import interpret
from oracle.lattice import Inexact
from oracle.program import AVERAGINGS, Backward, Finish, Parameter, Scenario, Step, ZeroGrad
from properties.claims import Claims
from properties.strategies import MOST_PARAMETERS, exact_scenarios, permutation, scenarios

ALL = Claims(
    bucket_cap=True,
    several_dtypes=True,
    unused="untouched",
    raises=True,
    freezing=True,
    tied=True,
    buffers="initial",
    sixteen_bits=True,
    layouts=True,
    empty=True,
    replaces=True,
    replicas=True,
)
PLAIN = Claims(accumulation=False)
SMALLEST = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))

Holds = Callable[[Scenario], Any]


def nbytes(parameter: Parameter) -> int:
    return parameter.count * FORMATS[parameter.dtype].bytes


def synchronizing(scenario: Scenario) -> list[Backward]:
    return [batch for batch in scenario.microbatches if batch.synchronize]


def cap_off_by(shift: int) -> Holds:
    return lambda s: s.bucket_cap in {nbytes(parameter) + shift for parameter in s.parameters}


def present_differs(batch: Backward) -> bool:
    return len({frozenset(order) for order in batch.orders}) > 1


def can_produce(holds: Holds, claims: Claims = ALL) -> Callable[[], object]:
    """A test that some scenario of those claims is like that, within 1000 draws."""
    once = settings(max_examples=1000, phases=[Phase.generate], database=None, derandomize=True, deadline=None)
    return lambda: (
        find(exact_scenarios(claims), holds, settings=settings(once, suppress_health_check=list(HealthCheck))) and None
    )


def several_buckets(scenario: Scenario) -> bool:
    trained = [nbytes(parameter) for parameter in scenario.parameters if parameter.trainable]
    return scenario.bucket_cap is not None and len(trained) > 2 and max(trained) <= scenario.bucket_cap < sum(trained)


test_can_produce_1_rank = can_produce(lambda s: s.world_size == 1)
test_can_produce_2_ranks = can_produce(lambda s: s.world_size == 2)
test_can_produce_3_ranks = can_produce(lambda s: s.world_size == 3)
test_can_produce_4_ranks = can_produce(lambda s: s.world_size == 4)
test_can_produce_5_ranks = can_produce(lambda s: s.world_size == 5)
test_can_produce_6_ranks = can_produce(lambda s: s.world_size == 6)
test_can_produce_7_ranks = can_produce(lambda s: s.world_size == 7)
test_can_produce_8_ranks = can_produce(lambda s: s.world_size == 8)
test_can_produce_several_buckets_of_several_parameters = can_produce(several_buckets)
test_can_produce_a_cap_as_large_as_a_parameter = can_produce(cap_off_by(0))
test_can_produce_a_cap_one_byte_smaller_than_a_parameter = can_produce(cap_off_by(-1))
test_can_produce_a_cap_one_byte_larger_than_a_parameter = can_produce(cap_off_by(1))
test_can_produce_no_cap = can_produce(lambda s: s.bucket_cap is None)
test_can_produce_a_frozen_parameter = can_produce(lambda s: not all(p.trainable for p in s.parameters))
test_can_produce_a_frozen_first_parameter = can_produce(lambda s: not s.parameters[0].trainable)
test_can_produce_several_dtypes = can_produce(lambda s: len({p.dtype for p in s.parameters}) > 1)
test_can_produce_float64_alone = can_produce(lambda s: {p.dtype for p in s.parameters} == {"float64"}, PLAIN)
test_can_produce_a_parameter_of_no_dimensions = can_produce(lambda s: any(p.shape == () for p in s.parameters))
test_can_produce_a_matrix = can_produce(lambda s: any(len(p.shape) == 2 for p in s.parameters))
test_can_produce_the_most_parameters = can_produce(lambda s: len(s.parameters) == MOST_PARAMETERS)
test_can_produce_absent_parameters = can_produce(
    lambda s: any(len(o) < len(s.parameters) for b in s.microbatches for o in b.orders)
)
test_can_produce_other_absent_parameters_on_other_ranks = can_produce(
    lambda s: any(map(present_differs, s.microbatches))
)
test_can_produce_a_parameter_that_nobody_uses = can_produce(
    lambda s: (
        {i for i, p in enumerate(s.parameters) if p.trainable}
        - {i for b in s.microbatches for o in b.orders for i in o}
    )
)
test_can_produce_other_orders_on_other_ranks = can_produce(
    lambda s: any(len(set(b.orders)) > 1 for b in s.microbatches), PLAIN
)
test_can_produce_other_orders_in_other_steps = can_produce(lambda s: len({b.orders for b in s.microbatches}) > 2, PLAIN)
test_can_produce_a_micro_batch_under_no_sync = can_produce(lambda s: not all(b.synchronize for b in s.microbatches))
test_can_produce_two_micro_batches_under_no_sync = can_produce(
    lambda s: sum(not b.synchronize for b in s.microbatches) == 2
)
test_can_produce_several_synchronizations = can_produce(lambda s: len(synchronizing(s)) > 2)
test_can_produce_several_steps = can_produce(lambda s: sum(isinstance(e, Step) for e in s.program) > 1)
test_can_produce_gradients_dropped = can_produce(lambda s: ZeroGrad(True) in s.program)
test_can_produce_gradients_zeroed = can_produce(lambda s: ZeroGrad(False) in s.program)
test_can_produce_no_zero_grad_between_synchronizations = can_produce(
    lambda s: len(synchronizing(s)) > 1 and not any(isinstance(e, ZeroGrad) for e in s.program)
)
test_can_produce_the_quadratic_probe_after_a_step = can_produce(
    lambda s: s.probe == "quadratic" and Step() in s.program[:-2]
)
test_can_produce_other_learning_rates = can_produce(lambda s: s.learning_rate == 0.25)


@pytest.mark.parametrize(
    ("claims", "hook_orders"), [(ALL, "any"), (PLAIN, "same on all ranks")], ids=["all", "plain, one order"]
)
def test_shrinks_to_the_smallest_scenario(claims: Claims, hook_orders: str) -> None:
    assert minimal(lambda s: True, claims, hook_orders) == SMALLEST


def minimal(holds: Holds, claims: Claims = ALL, hook_orders: str = "any") -> Scenario:
    """What such a scenario shrinks to."""
    quiet = settings(database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    return find(exact_scenarios(claims, hook_orders), holds, settings=quiet)


ONE = Parameter((1,))
TWO = (ONE, ONE)

SHRUNK: dict[str, tuple[Holds, Scenario]] = {
    "no_sync": (
        lambda s: any(not b.synchronize for b in s.microbatches),
        Scenario(2, (ONE,), (Backward(((0,), (0,)), False), *SMALLEST.program)),
    ),
    "different orders": (
        lambda s: any(len({o for o in b.orders if len(o) > 1}) > 1 for b in s.microbatches),
        Scenario(2, TWO, (Backward(((0, 1), (1, 0))), Finish())),
    ),
    "a cap": (lambda s: s.bucket_cap is not None, Scenario(2, (ONE,), SMALLEST.program, bucket_cap=4)),
}


@pytest.mark.parametrize("what", SHRUNK)
def test_shrinks_to_the_smallest_scenario_that_still_has(what: str) -> None:
    holds, smallest = SHRUNK[what]
    assert minimal(holds) == smallest


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_of_at_least_80_percent_of_what_is_drawn_the_oracle_knows_what_must_come_out(averaging: str) -> None:
    drawn = list[bool]()

    @seed(0)
    @given(scenarios(replace(ALL, averaging=averaging)))
    @settings(max_examples=200, phases=[Phase.generate], database=None, deadline=None)
    def draw(scenario: Scenario) -> None:
        try:
            interpret(scenario, averaging, "untouched")
        except Inexact:
            drawn.append(False)
        else:
            drawn.append(True)

    draw()
    assert sum(drawn) * 5 >= len(drawn) * 4


FORBIDDEN: dict[str, tuple[Claims, Holds]] = {
    "a cap": (Claims(), lambda s: s.bucket_cap is not None),
    "several dtypes": (Claims(), lambda s: len({p.dtype for p in s.parameters}) > 1),
    "no_sync": (PLAIN, lambda s: not all(b.synchronize for b in s.microbatches)),
    "absent parameters": (
        Claims(),
        lambda s: any(len(o) != sum(p.trainable for p in s.parameters) for b in s.microbatches for o in b.orders),
    ),
    "different orders": (Claims(hook_order=False), lambda s: any(len(set(b.orders)) > 1 for b in s.microbatches)),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_is_not_claimed_is_not_drawn(what: str) -> None:
    claims, holds = FORBIDDEN[what]

    @given(exact_scenarios(claims))
    @settings(max_examples=150, phases=[Phase.generate], database=None, deadline=None)
    def never(scenario: Scenario) -> None:
        assert not holds(scenario)

    never()


def test_permutations_are_all_there_and_the_first_is_the_identity() -> None:
    items = (3, 5, 7, 8)
    assert permutation(items, 0) == items
    assert permutation(items, 1) == (3, 5, 8, 7)
    assert len({permutation(items, number) for number in range(24)}) == 24
    assert all(permutation(items, number + 24) == permutation(items, number) for number in range(24))
    assert all(sorted(permutation(items, number)) == list(items) for number in range(24))
