"""The interpreter against torch: the same program with real autograd, optimizers and clipping, in one process.

Where an expectation is an array, bits are compared; where it is an interval, membership.
"""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.events import (
    Backward,
    Clip,
    Event,
    Finish,
    Freeze,
    Join,
    Move,
    Raise,
    SaveAndLoad,
    Step,
    Unscale,
    ZeroGrad,
)
from lockstep.oracle.events.clip import NORMS
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.intervals import Interval
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.model import Buffer, Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import NAMES, Scenario
from lockstep.oracle.tests.examples import examples
from lockstep.properties.claims import Claims
from lockstep.properties.judging.judge import holds, pairs
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.tests.drawn_programs import programs
from lockstep.properties.tests.one_process import OneProcess
from lockstep.worlds.contract import Job, World

INF = float("inf")
SIXTEEN = ("bfloat16", "float16")


def test_a_momentum_buffer_outlives_the_gradient_that_it_began_as() -> None:
    batch = (Backward(((0,),)), Finish(), Step())
    scenario = Scenario(
        1, (Parameter((1,)),), (*batch, ZeroGrad(), *batch), hyperparameters=Hyperparameters(momentum=0.5)
    )
    parameters = interpret(scenario).parameters
    assert parameters[2][0] == [1 - 1 / 2]
    assert parameters[6][0] == [1 / 2 - (3 + 1 / 2) / 2]


def disagreements(seen: Any, expected: Expectation, rank: int | None = None) -> list[str]:
    """Everything seen that is not as expected, in words; without ``rank`` of one process that stands for all."""
    if rank is None:
        expected = replace(expected, buffers={})
    return [
        f"{quantity} {place} {index}: {actual} against {wanted}"
        for place in sorted({*expected.gradients, *expected.parameters, *expected.buffers})
        for quantity, *values in pairs(seen, expected, place, rank or 0)
        for index, (actual, wanted) in enumerate(zip(*values, strict=True))
        if not holds(actual, wanted)
    ]


def expect(scenario: Scenario, averaging: str) -> Expectation:
    try:
        return interpret(scenario, averaging)
    except Inexact:
        assume(False)
        raise


@given(
    programs() | programs(dtypes=("float32", *SIXTEEN)), st.sampled_from(AVERAGINGS), st.randoms(use_true_random=False)
)
@examples(150, suppress_health_check=list(HealthCheck))
def test_torch_in_one_process_does_what_the_interpreter_says(scenario: Scenario, averaging: str, random: Any) -> None:
    """torch's GradScaler does not take float16 gradients, nor ones that its optimizer does not step."""
    sixteen = any(parameter.dtype in SIXTEEN for parameter in scenario.parameters)
    assume(scenario.loss_scale is None or not sixteen)
    expected = expect(scenario, averaging)
    order = list(range(scenario.world_size))
    random.shuffle(order)
    assert disagreements(OneProcess(scenario, averaging, order).run(), expected) == []


@given(programs(), st.sampled_from([(2, 1), (3, 1), (1, 2), (1, 3), (2, 2), (3, 3)]))
@examples(120, suppress_health_check=list(HealthCheck))
def test_torch_in_one_process_agrees_where_a_micro_batch_has_several_forwards_or_backwards(
    scenario: Scenario, form: tuple[int, int]
) -> None:
    forwards, backwards = form
    program = (
        replace(event, forwards=forwards, backwards=backwards) if isinstance(event, Backward) else event
        for event in scenario.program
    )
    often = replace(scenario, program=tuple(program))
    expected = expect(often, "sum then divide")
    assert expected.gradients.keys() == expect(scenario, "sum then divide").gradients.keys()
    assert disagreements(OneProcess(often, "sum then divide", [*range(often.world_size)]).run(), expected) == []


JOINING = Claims(joins=DIVISORS, unused="untouched", tied_parameters=True, several_dtypes=True)


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_torch_in_one_process_agrees_where_ranks_run_out_of_micro_batches(averaging: str) -> None:
    divided_by: set[str] = set()
    left_something = 0

    @given(exact_scenarios(replace(JOINING, averaging=averaging), has=("joins",)), st.randoms(use_true_random=False))
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(scenario: Scenario, random: Any) -> None:
        nonlocal left_something
        order = list(range(scenario.world_size))
        random.shuffle(order)
        assert disagreements(OneProcess(scenario, averaging, order).run(), interpret(scenario, averaging)) == []
        divided_by.update(event.divide_by for event in scenario.program if isinstance(event, Join))
        left_something += any(set(then.gone) - set(first.gone) for first, then in pairwise(scenario.microbatches))

    check()
    assert divided_by == {*DIVISORS}
    assert left_something


@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("to_none", [True, False])
def test_torch_in_one_process_agrees_on_what_follows_a_clip_after_an_overflow(norm_type: float, to_none: bool) -> None:
    """Norm and gradients are not finite, which the oracle leaves open; the step is skipped, and the next is exact."""
    window = (Finish(), Unscale(), Clip(2.0**40, norm_type), Step())
    orders = ((0, 1), (1,))
    program = (Backward(orders, overflow=(1,)), *window, ZeroGrad(to_none), Backward(orders), *window)
    model = (Parameter((2,)), Parameter((3,)))
    scenario = Scenario(2, model, program, hyperparameters=Hyperparameters(momentum=0.5), loss_scale=LossScale(8.0, 1))
    expected, seen = interpret(scenario), OneProcess(scenario, AVERAGINGS[0], [0, 1]).run()
    assert disagreements(seen, expected) == []
    assert [expected.norms.keys(), expected.loss_scales] == [{9}, {4: 4.0, 10: 8.0}]
    assert 3 not in expected.gradients
    assert not np.isfinite(seen["norms"][3])
    assert not np.isfinite(seen["gradients"][3][1]).any()


@given(programs() | exact_scenarios(JOINING, has=("joins",)))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_repr_and_json_of_every_event_come_back(scenario: Scenario) -> None:
    assert eval(repr(scenario), NAMES | {"inf": INF}) == scenario
    assert Scenario.from_json(scenario.to_json()) == scenario
    assert hash(Scenario.from_json(scenario.to_json())) == hash(scenario)


def run_on(world: World, scenario: Scenario, implementation: str) -> Any:
    payload = json.dumps({"implementation": implementation, "scenario": scenario.to_json()})
    outcome = world.run(Job("lockstep.properties.ranks.program:run_program", payload, scenario.world_size))
    assert [report.error for report in outcome] == [None] * scenario.world_size
    return [report.result for report in outcome]


def thaws(scenario: Scenario) -> bool:
    """True if a parameter is trained that was frozen when it was wrapped: neither torch's DDP nor ours takes that."""
    frozen = wrapped = {index for index, parameter in enumerate(scenario.parameters) if not parameter.trainable}
    for event in scenario.program:
        if isinstance(event, Freeze):
            frozen = frozen | {*event.parameters} if event.frozen else frozen - {*event.parameters}
        elif isinstance(event, SaveAndLoad):
            wrapped = frozen
        if wrapped - frozen:
            return True
    return False


@given(scenario=programs(3, ("float32", "float64", *SIXTEEN)))
@examples(100, suppress_health_check=list(HealthCheck))
def test_the_ranks_do_what_the_interpreter_says(sim: World, scenario: Scenario) -> None:
    assume(not thaws(scenario) and not scenario.has(Move))  # which it does not claim
    expected = expect(scenario, "sum then divide")
    for rank, seen in enumerate(run_on(sim, scenario, "lockstep.impls.static_buckets:StaticBuckets")):
        assert disagreements(seen, expected, rank) == []


@pytest.mark.parametrize("p", [1.0, 2.0, INF])
@pytest.mark.parametrize("max_norm", [1.0, 0.5, 64.0, 1000.0])
def test_where_the_norm_is_a_power_of_two_from_32_clipping_is_exact_in_a_program(p: float, max_norm: float) -> None:
    """One contribution of 1 on one of two ranks, times the loss scale 128, averaged: a norm of 64."""
    window = (Backward(((0,), (0,))), Finish(), Clip(max_norm, p), Step())
    scenario = Scenario(2, (Parameter((3,)),), window, only=(0, 1, 0, 2), loss_scale=LossScale(128.0))
    expected = interpret(scenario)
    assert expected.exact
    assert expected.norms[2] == 64
    (gradient,) = expected.gradients[2]
    assert isinstance(gradient, np.ndarray)
    assert gradient.tolist() == [0, 0, min(64, max_norm)]
    assert disagreements(OneProcess(scenario, AVERAGINGS[0], [1, 0]).run(), expected) == []


BIG = Scenario(
    2,
    (Parameter((2,)), Parameter((1,))),
    (Backward(((0, 1), (1, 0))), Finish(), Clip(1.0), Step(), ZeroGrad()) * 3,
    optimizer="AdamW",
    hyperparameters=Hyperparameters(learning_rate=0.1, weight_decay=0.1),
)


def test_an_enclosure_is_narrow_enough_to_see_a_wrong_mean() -> None:
    expected = interpret(BIG)
    assert not expected.exact
    doubled = OneProcess(BIG, AVERAGINGS[0], [0, 1])
    doubled.numbers[1] = [[2 * values for values in batch] for batch in doubled.numbers[1]]
    kinds = Counter(line.split()[0] for line in disagreements(doubled.run(), expected))
    assert kinds.keys() >= {"gradient", "norm", "exp_avg", "exp_avg_sq"}


def test_an_enclosure_of_parameters_is_narrow_enough_to_see_wrong_hyperparameters() -> None:
    """A gradient of the wrong scale hides in Adam's parameters; these do not: every element is outside."""
    right = interpret(BIG)
    longer = replace(BIG.hyperparameters, learning_rate=0.1 * (1 + 2.0**-16))
    for wrong in (replace(BIG, optimizer="Adam"), replace(BIG, hyperparameters=longer)):  # coupled decay; longer steps
        seen = OneProcess(wrong, AVERAGINGS[0], [0, 1]).run()["parameters"]
        assert seen.keys() == right.parameters.keys()
        for place, values in right.parameters.items():
            for value, other in zip(values, seen[place], strict=True):
                assert isinstance(value, Interval)
                assert not value.contains(other).any(), place


@pytest.mark.parametrize("where", ["no_sync", "forward", "module", "backward", "hook"])
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_an_error_of_the_callers_leaves_no_trace_on_the_ranks(sim: World, where: str, rank: int | None) -> None:
    pair = Backward(((0, 1), (1, 0)), False)
    program = (pair, Raise(where, rank), pair, Backward(((1, 0), (0, 1))), Finish(), Step())
    scenario = Scenario(2, (Parameter((1,)), Parameter((2,))), program, buffers=(Buffer((1,)),))
    expected = interpret(scenario)
    assert expected.exact
    for number, seen in enumerate(run_on(sim, scenario, "lockstep.impls.static_buckets:StaticBuckets")):
        assert disagreements(seen, expected, number) == []


@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_freezing_saving_and_loading_on_the_ranks(sim: World, frozen: tuple[int, ...]) -> None:
    first, alone = Backward(((0, 1), (1, 0))), Backward(((1 - frozen[0],),) * 2)
    window = (Finish(), Step(), ZeroGrad())
    program = (first, *window, Freeze(frozen), SaveAndLoad(), alone, *window, SaveAndLoad(False), alone, *window)
    momentum = Hyperparameters(momentum=0.5)
    scenario = Scenario(2, (Parameter((1,)), Parameter((2,))), program, hyperparameters=momentum)
    expected = interpret(scenario)
    assert expected.exact
    for number, seen in enumerate(run_on(sim, scenario, "lockstep.impls.static_buckets:StaticBuckets")):
        assert disagreements(seen, expected, number) == []


WINDOW = (Backward(((0,),)), Finish())
TWICE = (*WINDOW, Step(), ZeroGrad(), *WINDOW)
# What came out wrong once, each on one rank.
ROUNDS: dict[str, Scenario] = {
    "a tied parameter's parts, each of one product": Scenario(
        1,
        (Parameter((3,)), Parameter((2,), "bfloat16"), *[Parameter((2,), "bfloat16", tied=1)] * 2),
        (Backward(((3, 1, 2),)), Finish()),
        probe="quadratic",
    ),
    "a product that is subnormal in float16": Scenario(
        1,
        (Parameter((1,), "float16"),),
        TWICE,
        probe="quadratic",
        hyperparameters=Hyperparameters(learning_rate=0.9999831108103354),
        masters=True,
    ),
    "a coefficient that is rounded twice in float16": Scenario(
        1, (Parameter((3,), "float16"),), (*WINDOW, Clip(2.9, INF))
    ),
    "a coefficient that is rounded twice in bfloat16": Scenario(
        1, (Parameter((6,), "bfloat16"),), (*WINDOW, Clip(6.7, INF))
    ),
    "1e-6 in bfloat16": Scenario(1, (Parameter((2,), "bfloat16"),), (*WINDOW, Clip(1e-6, 3.0), Clip(1e-6, 3.0))),
    "a coefficient of zero": Scenario(
        1,
        (Parameter((1,), "float16"),),
        (*TWICE, Clip(1e-9, INF)),
        probe="quadratic",
        hyperparameters=Hyperparameters(learning_rate=2.0),
    ),
}


@pytest.mark.parametrize("what", ROUNDS)
def test_what_torch_rounds_in_its_own_way_is_as_told(what: str) -> None:
    scenario = ROUNDS[what]
    assert disagreements(OneProcess(scenario, AVERAGINGS[0], [0]).run(), interpret(scenario)) == []


def steep(rate: float, *events: Event, sparse: tuple[int, int] = (0, 1)) -> Scenario:
    """A step so long that weights become negative, and perhaps large."""
    far = Hyperparameters(learning_rate=rate)
    return Scenario(1, (Parameter((2,)),), (*TWICE, *events), probe="quadratic", sparse=sparse, hyperparameters=far)


def scaled(*events: Event) -> Scenario:
    """With a loss scale."""
    return Scenario(1, (ONE,), events, loss_scale=LossScale(8.0))


ONE = Parameter((1,))
OVERFLOWS = (Backward(((0,),), overflow=(0,)), Finish())
CLIPPED = (*OVERFLOWS, Unscale(), Clip(1.0))
UNCERTAIN: dict[str, Scenario] = {
    "cubes that overflow": steep(1e12, Clip(1.0, 3.0)),
    "squares that overflow": steep(1e20, Clip(1.0)),
    "a zero of either sign": steep(2.0, sparse=(1, 2)),
    "zero times a negative contribution": Scenario(
        1, (ONE,), TWICE, probe="quadratic", hyperparameters=Hyperparameters(weight_decay=3.0), signs="negative"
    ),
    "initial weights that bfloat16 does not hold": Scenario(
        1, (Parameter((256,)), Parameter((1,), "bfloat16")), (Backward(((1,),)), Finish(), Step()), masters=True
    ),
    "a loss scale that float16 does not hold": Scenario(
        1,
        (ONE, Parameter((1,), "float16")),
        (Backward(((0, 1),)), Finish()),
        only=(0, 0, 0, 0),
        loss_scale=LossScale(65536.0),
    ),
    "an overflow that is clipped before Unscale": scaled(*OVERFLOWS, Clip(1.0)),
    "a sum of gradients that were clipped after an overflow": scaled(*CLIPPED, *WINDOW),
    "a norm of gradients that were clipped after an overflow": scaled(*CLIPPED, Clip(1.0)),
    "a step with gradients that were clipped after an overflow": scaled(*CLIPPED, Step(), Step()),
    "a quotient of gradients that were clipped after an overflow": scaled(*CLIPPED, Step(), Unscale()),
    "a divisor that may be zero": Scenario(
        1, (ONE,), (*WINDOW, ZeroGrad(False), Step()), optimizer="Adam", hyperparameters=Hyperparameters(eps=0.0)
    ),
}


@pytest.mark.parametrize("what", UNCERTAIN)
def test_what_cannot_be_told_is_refused(what: str) -> None:
    with pytest.raises(Inexact):
        interpret(UNCERTAIN[what])
