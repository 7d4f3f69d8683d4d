"""What `lockstep run` shows of real implementations: order, buckets, waits and bytes on sim; a clock on gloo."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.model import Parameter
from lockstep.oracle.overlap import timeline
from lockstep.oracle.program import Scenario
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.tracing import clocked, comparison, program, trace
from lockstep.properties.tracing.model import CostModel
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.world import SimWorld

MODEL = CostModel(scale=2**13)


def traced(sim: SimWorld, name: str, scenario: Scenario | None = None, ranks: int = 2) -> trace.Trace:
    trial = trial_of(f"lockstep.impls.{name}", sim)
    usual = program.training(trial.claims, program.usual_model(), ranks, bucket_cap=program.usual_cap())
    return trace.trace(trial, scenario or usual, MODEL)


def test_static_buckets_have_the_timeline_of_the_formula(sim: SimWorld) -> None:
    seen = traced(sim, "static_buckets:StaticBuckets", ranks=3)
    parameters = seen.scenario.parameters
    backward = [MODEL.gradient(each) for each in reversed(parameters)]
    travels = {
        passage.bytes: MODEL.collective(passage) for call in seen.calls[0].values() for passage in [call.passage]
    }
    half = sum(each.nbytes for each in parameters) // 2
    (seconds,) = travels.values()  # of two buckets of one size
    line = timeline(
        sum(map(MODEL.forward, parameters), Fraction(0)),
        backward,
        MODEL.optimizer(parameters),
        [each.nbytes for each in reversed(parameters)],
        half,
        lambda _: seconds,
    )
    assert (seen.played.step, seen.played.exposed, seen.played.overlap) == (line.step, line.exposed, line.overlap)
    shown = trace.lanes(seen, "StaticBuckets", MODEL)
    assert [each.carries() for each in shown.transfers] == ["h, g, f, e", "d, c, b, a"]
    assert all(lane.held for lane in shown.lanes)
    assert not any(each.clash for each in shown.transfers)


def test_blocking_hooks_hide_nothing_and_wait_for_each_gradient(sim: SimWorld) -> None:
    shown = trace.lanes(traced(sim, "hook:HookDataParallel"), "Hook", MODEL)
    assert [each.carries() for each in shown.transfers] == list("hgfedcba")
    assert [each.name for each in shown.lanes[0].doings if each.kind == "wait"] == list("12345678")
    assert shown.facts["overlap"].startswith("0 %")


def test_stage_3_gathers_each_layer_twice_and_scatters_it_once(sim: SimWorld) -> None:
    shown = trace.lanes(traced(sim, "zero3:Zero3"), "Zero3", MODEL)
    operations = [each.operation for each in shown.transfers]
    assert (operations.count("all_gather"), operations.count("reduce_scatter")) == (8, 4)


def test_buckets_by_hook_order_show_where_different_parameters_meet(sim: SimWorld) -> None:
    scenario = Scenario(2, (Parameter((2,)),) * 3, (Backward(((0, 1, 2), (2, 1, 0))), Finish(), Step()), bucket_cap=16)
    shown = trace.lanes(traced(sim, "hook_order_buckets:HookOrderBuckets", scenario), "HookOrderBuckets", MODEL)
    assert [each.carries() for each in shown.transfers] == ["rank 0: a, b; rank 1: c, b", "rank 0: c; rank 1: a"]
    assert shown.facts["wrong"] == "different parameters meet in 1, 2"


def test_gloo_is_shown_by_the_clock(gloo: GlooWorld) -> None:
    trial = trial_of("lockstep.impls.static_buckets:StaticBuckets", gloo)
    scenario = program.training(trial.claims, program.usual_model(), 2, steps=3, bucket_cap=program.usual_cap())
    outcome = clocked.clocked(trial, scenario)
    shown = clocked.lanes(scenario, outcome, "StaticBuckets")
    assert [[each.kind for each in lane.doings] for lane in shown.lanes] == [
        ["forward", "backward", "finish", "optimizer"]
    ] * 2
    assert len(shown.transfers) == 2
    for each in shown.transfers:
        assert max(each.launched.values()) == each.start <= each.end <= shown.end
    assert len(clocked.seconds_of_steps(scenario, outcome)) == 2
    assert 0 < clocked.seconds_under_way(scenario, outcome) < sum(clocked.seconds_of_steps(scenario, outcome))


def test_the_comparison_has_the_calls_and_shares_of_the_published_one(sim: SimWorld) -> None:
    """290 tensors, 2 micro-batches, one synchronization: 291 calls were published, one of them no gradient's."""
    names = ("lockstep.impls.naive:NaiveAccumulation", "lockstep.impls.frameworks.torch_ddp:TorchDDP")
    implementations = [trial_of(name, sim).implementation for name in names]
    rows = list(comparison.compare(implementations, 2, CostModel(scale=comparison.SCALE), sim, None))
    assert [row.calls for row in rows] == [290, 45]
    naive, ddp = (row.on_sim for row in rows)
    assert naive is not None
    assert (round(100 * naive.compute), naive.overlap) == (80, 0)
    assert ddp is not None
    assert ddp.overlap > 0.5
    lines = comparison.told(rows, 2, MODEL)
    assert max(map(len, lines)) <= 80
    assert not any("gloo" in line.lower() for line in lines), "nobody asked for the clock"
    both = comparison.told([replace(row, by_the_clock=row.on_sim) for row in rows], 2, MODEL)
    assert max(map(len, both)) <= 80
    assert "gloo, by the clock" in both[0]


def test_an_implementation_that_crashes_has_a_row_with_its_error(sim: SimWorld) -> None:
    (row,) = comparison.compare([trial_of("torch:add", sim).implementation], 2, MODEL, sim, None)
    assert row.on_sim is None
    assert row.why.startswith("crashes: rank 0: TypeError: add() received an invalid combination of arguments")
    assert max(map(len, comparison.told([row], 2, MODEL))) <= 80


def test_a_scenario_is_read_back_and_what_is_none_is_refused() -> None:
    scenario = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
    assert program.read(repr(scenario)) == scenario
    with pytest.raises(ValueError, match="this is no scenario: NameError"):
        program.read("__import__('os')")
    with pytest.raises(ValueError, match="this is no scenario but a Parameter"):
        program.read("Parameter((1,))")
