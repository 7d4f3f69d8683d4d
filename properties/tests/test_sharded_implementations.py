"""ZeRO's stages do what the interpreter says, in programs of every event."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings

from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Duplicate,
    Finish,
    Move,
    Raise,
    Step,
    SwapWeights,
    Write,
    ZeroGrad,
)
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.expected import known
from lockstep.properties.implementations import look_up
from lockstep.properties.judging.fair_share import fair_shares
from lockstep.properties.judging.memory import WEIGHING, bytes_held
from lockstep.properties.strategies.scenarios import adds_up_rounded_means
from lockstep.properties.test_sharding import OWNS_NOTHING, only_steps_round, unsharded
from lockstep.properties.tests.drawn_programs import programs
from lockstep.properties.tests.test_oracle_against_torch_programs import SIXTEEN, disagreements, run_on
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, SilentlyWrong, Wasteful
from lockstep.worlds.contract import Job, World

ZERO = ("lockstep.impls.zero1:Zero1", "lockstep.impls.zero2:Zero2", "lockstep.impls.zero3:Zero3")

BETWEEN = (ActAlone, Duplicate, Move, SwapWeights, Write)  # what takes parameters outside of forward and backward


def run_one_by_one(scenario: Scenario) -> bool:
    """True if a rank has a micro-batch of its own, or uses no parameter in one that others do: ZeRO-3 has nobody to
    gather from.
    """
    alone = any(isinstance(event, Raise) and event.rank is not None for event in scenario.program)
    return scenario.world_size > 1 and (alone or any(() in batch.orders for batch in scenario.microbatches))


@pytest.mark.parametrize("implementation", ZERO)
@given(scenario=programs(3, ("float32", "float64", *SIXTEEN)))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stage_does_what_the_interpreter_says(sim: World, implementation: str, scenario: Scenario) -> None:
    # ZeRO-3 has no parameters between events that a caller could use.
    assume(not (implementation == ZERO[2] and (run_one_by_one(scenario) or scenario.has(*BETWEEN))))
    try:
        expected = interpret(scenario, "sum then divide", "zero")
    except Inexact:
        reject()
    assume(not adds_up_rounded_means(scenario, expected))
    for rank, seen in enumerate(run_on(sim, scenario, implementation)):
        assert disagreements(seen, expected, rank) == []


def test_stages_are_compared_with_no_sharding_where_both_ways_to_take_the_mean_are_exact() -> None:
    """Six ranks' shares add up exactly, and their gradients, which are six times as large, do not."""
    one = (Backward(((0,),) * 6), Finish())
    scenario = Scenario(6, (Parameter((3,)),), (*one, Step(), ZeroGrad(), *one), probe="quadratic")
    first = Claims(stage=1, averaging="multiply by reciprocal then sum")
    assert known(scenario, first) is not None
    assert known(scenario, unsharded(first)) is None
    assert not only_steps_round(scenario, first)
    assert only_steps_round(replace(scenario, probe="linear"), first)


@pytest.mark.parametrize(
    ("implementation", "stage", "verdict"),
    [
        (ZERO[0], 1, None),
        (ZERO[1], 1, None),
        (ZERO[0], 2, Wasteful),
        (ZERO[1], 3, Wasteful),
        (ZERO[2], 1, SilentlyWrong),
    ],
)
def test_only_to_hold_more_is_wasteful(
    sim: World, implementation: str, stage: int, verdict: type[LawBroken] | None
) -> None:
    """Stage 1 may hold as little as stage 2 does; less is no waste, but something is not there."""
    (under_test,) = look_up([implementation], sim)
    trial = Trial(under_test, sim)
    run, expected = trial.run(OWNS_NOTHING, function=WEIGHING), trial.expected(OWNS_NOTHING)
    shares = fair_shares(OWNS_NOTHING, expected, stage)
    raised: Any = contextlib.nullcontext() if verdict is None else pytest.raises(verdict)
    with raised:
        bytes_held(run, shares, "A headline.")


@pytest.mark.parametrize(("stage", "most"), [(1, 32), (2, 24), (3, 16)])
def test_whole_tensors_may_be_padded_as_their_shards_are(stage: int, most: int) -> None:
    """Three elements of float32 on two ranks: a shard has two, and what is whole four, of which the shards are views:
    parameters and gradients at stage 1, parameters at stage 2, where a slice of the gradient comes beside them.
    """
    scenario = Scenario(2, (Parameter((3,)),), (Backward(((0,), (0,))), Finish()))
    expected = known(scenario, Claims())
    assert expected is not None
    assert fair_shares(scenario, expected, stage)[1][1] == 2 * most


@pytest.mark.parametrize("in_place", [False, True])
def test_a_unit_may_hand_on_a_view_of_its_input_and_its_own_be_changed(sim: World, in_place: bool) -> None:
    """Backward comes to what is handed on long after it has left the unit, which is not reduced once more."""
    for report in sim.run(Job("lockstep.properties.tests.handed_on:gradients", json.dumps(in_place), 2)):
        assert report.error is None
        sharded, means = report.result or ([], None)
        assert sharded == means


def test_hooks_that_make_weights_of_parameters_find_these(sim: World) -> None:
    """As those of `spectral_norm` do, which are there before the model is sharded."""
    for report in sim.run(Job("lockstep.properties.tests.normalized:outputs", "", 2)):
        assert report.error is None
        assert report.result
        assert report.result["sharded"] == report.result["plain"]


@pytest.mark.parametrize("graph", ["with a graph", "without"])
def test_a_sharded_model_is_differentiated_once(sim: World, graph: str) -> None:
    for report in sim.run(Job("lockstep.properties.tests.normalized:differentiated_twice", graph, 2)):
        assert report.error is None
        assert report.result is not None
        assert ("can be differentiated once" in report.result.get("refused", "")) == (graph == "with a graph")


def test_a_sharded_model_refuses_to_be_copied(sim: World) -> None:
    """So does any part of it: its tensors have no memory that a copy could read."""
    for report in sim.run(Job("lockstep.properties.tests.normalized:copied", "", 2)):
        assert report.error is None
        words = "a model that is sharded cannot be copied; load what full_parameters tells"
        assert report.result == dict.fromkeys(("the model", "a layer", "parameters"), words)
