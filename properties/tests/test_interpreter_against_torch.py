"""The interpreter against torch: the same program with real autograd, optimizers and clipping, in one process.

Where an expectation is an array, bits are compared; where it is an interval, membership.
"""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from oracle import lattice
from oracle.clipping import clip
from oracle.fingerprint import coefficients, initial_parameters
from oracle.formats import FORMATS
from oracle.interpreter import Expectation, interpret
from oracle.intervals import Interval
from oracle.lattice import Inexact
from oracle.program import (
    AVERAGINGS,
    NAMES,
    Backward,
    Buffer,
    Clip,
    Finish,
    Freeze,
    Hyperparameters,
    LossScale,
    Parameter,
    Raise,
    SaveAndLoad,
    Scenario,
    SetHyperparameters,
    Step,
    Unscale,
    ZeroGrad,
)
from properties.judge import same_bits
from properties.probes import to_numpy
from properties.tests.drawn_programs import programs
from worlds.contract import Job, World

INF = float("inf")
SIXTEEN = ("bfloat16", "float16")


def holds(seen: Any, expected: Any) -> bool:
    """Bits against an array, membership in an interval, None against None."""
    if isinstance(expected, Interval):
        return seen is not None and bool(expected.contains(seen).all())
    return same_bits(seen, expected)


def test_a_momentum_buffer_outlives_the_gradient_that_it_began_as() -> None:
    batch = (Backward(((0,),)), Finish(), Step())
    scenario = Scenario(
        1, (Parameter((1,)),), (*batch, ZeroGrad(), *batch), hyperparameters=Hyperparameters(momentum=0.5)
    )
    parameters = interpret(scenario).parameters
    assert parameters[2][0] == [1 - 1 / 2]
    assert parameters[6][0] == [1 / 2 - (3 + 1 / 2) / 2]


class OneProcess:
    """All ranks in one process: gradients by autograd rank by rank, the mean by hand, and then one model for all."""

    def __init__(self, scenario: Scenario, averaging: str, order: list[int]) -> None:
        self.scenario, self.averaging, self.order = scenario, averaging, order
        values = initial_parameters(scenario, 0)
        self.tensors = [
            torch.nn.Parameter(torch.tensor(value, dtype=getattr(torch, parameter.dtype)))
            for value, parameter in zip(values, scenario.parameters, strict=True)
        ]
        self.tensors = [self.tensors[scenario.tensor(index)] for index in range(len(self.tensors))]
        self.numbers = [coefficients(scenario, rank) for rank in range(scenario.world_size)]
        self.local: list[dict[int, torch.Tensor]] = [{} for _ in range(scenario.world_size)]
        self.seen: dict[str, dict[int, Any]] = {
            kind: {} for kind in ("gradients", "parameters", "norms", "states", "loss_scales")
        }
        self.begin()

    def begin(self) -> None:
        """Optimizer, masters and scaler, from the values now."""
        scenario = self.scenario
        self.held = [
            torch.nn.Parameter(t.detach().float()) if scenario.masters and t.dtype.itemsize == 2 else t
            for t in self.tensors
        ]
        self.held = [self.held[scenario.tensor(index)] for index in range(len(self.held))]
        base = {"lr": scenario.learning_rate, "weight_decay": 0.0, **named(scenario.hyperparameters)}
        in_groups = [index for group in scenario.groups for index in group.parameters]
        rest = [i for i, p in enumerate(scenario.parameters) if p.tied is None and i not in in_groups]
        groups: list[Any] = [{"params": [self.held[index] for index in rest]}]
        groups += [
            {"params": [self.held[i] for i in g.parameters], **named(g.hyperparameters)} for g in scenario.groups
        ]
        self.optimizer = getattr(torch.optim, scenario.optimizer)(groups, **base)
        scale = scenario.loss_scale
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=scale.initial if scale else 1.0, growth_interval=scale.growth_interval if scale else 1
        )
        self.scaler.scale(torch.ones(()))  # it makes its state when it is first used

    def run(self) -> dict[str, dict[int, Any]]:
        """What is seen, as `properties.rank.run_program` reports it."""
        batch = 0
        for place, event in enumerate(self.scenario.program):
            match event:
                case Backward():
                    for rank in range(self.scenario.world_size):
                        self.backward(batch, rank, rank in event.overflow)
                    batch += 1
                case Finish():
                    self.finish()
                case Unscale():
                    self.scaler.unscale_(self.optimizer)
                case Clip():
                    norm = torch.nn.utils.clip_grad_norm_(self.unique(), event.max_norm, event.norm_type)
                    self.seen["norms"][place] = to_numpy(norm)
                case Step():
                    self.step()
                    self.seen["states"][place] = [self.state(index) for index in range(len(self.tensors))]
                    if self.scenario.loss_scale:
                        self.seen["loss_scales"][place] = self.scaler.get_scale()
                case ZeroGrad():
                    self.zero(event.set_to_none)
                case SetHyperparameters():
                    for number, group in enumerate(self.optimizer.param_groups):
                        if event.group in (None, number):
                            group.update(named(event.values))
                case SaveAndLoad():
                    self.zero(True)
                    if not event.optimizer:
                        self.begin()
                case Raise() if event.where in ("backward", "hook"):
                    self.zero(True)
            if isinstance(event, (Finish, Unscale, Clip)):
                self.seen["gradients"][place] = [to_numpy(tensor.grad) for tensor in self.tensors]
                for mine in self.local:
                    mine.update({i: t.grad.clone() for i, t in enumerate(self.tensors) if t.grad is not None})
            elif isinstance(event, (Step, SaveAndLoad)):
                self.seen["parameters"][place] = [to_numpy(tensor) for tensor in self.tensors]
        return self.seen

    def unique(self) -> list[torch.nn.Parameter]:
        return list(dict.fromkeys(self.tensors))

    def backward(self, batch: int, rank: int, overflow: bool) -> None:
        loss: Any = 0.0
        used = self.scenario.order(batch, rank)
        for index in used:
            tensor = self.tensors[index]
            c = torch.tensor(self.numbers[rank][batch][index], dtype=tensor.dtype)
            c = torch.full_like(c, INF) if overflow else c
            loss = loss + (c * (tensor if self.scenario.probe == "linear" else tensor * tensor / 2)).sum()
        tensors = [self.tensors[index] for index in used]
        mine = self.local[rank]
        if self.scenario.loss_scale:
            loss = loss * self.scaler.get_scale()
        for tensor, gradient in zip(
            dict.fromkeys(tensors), torch.autograd.grad(loss, list(dict.fromkeys(tensors))), strict=True
        ):
            for index, other in enumerate(self.tensors):
                if other is tensor:
                    mine[index] = mine[index] + gradient if index in mine else gradient

    def finish(self) -> None:
        ranks = self.scenario.world_size
        for index, tensor in enumerate(self.tensors):
            if any(index in mine for mine in self.local):
                terms = [self.local[rank].get(index, torch.zeros_like(tensor)) for rank in self.order]
                if self.averaging == "divide then sum":
                    terms = [term / ranks for term in terms]
                elif self.averaging != "sum then divide":
                    terms = [term * torch.tensor(1 / ranks, dtype=tensor.dtype) for term in terms]
                total = terms[0].detach().clone()
                for term in terms[1:]:
                    total += term
                tensor.grad = total / ranks if self.averaging == "sum then divide" else total

    def step(self) -> None:
        for tensor, master in zip(self.tensors, self.held, strict=True):
            if master is not tensor:
                master.grad = None if tensor.grad is None else tensor.grad.float()
        if self.scenario.loss_scale:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        with torch.no_grad():
            for tensor, master in zip(self.tensors, self.held, strict=True):
                if master is not tensor:
                    tensor.copy_(master)
        for mine in self.local:  # unscaling has changed them
            mine.update({i: t.grad.clone() for i, t in enumerate(self.tensors) if t.grad is not None})

    def zero(self, to_none: bool) -> None:
        for tensor in self.unique():
            tensor.grad = None if to_none or tensor.grad is None else torch.zeros_like(tensor)
        for mine in self.local:
            if to_none:
                mine.clear()
            mine.update({index: torch.zeros_like(gradient) for index, gradient in mine.items()})

    def state(self, index: int) -> dict[str, Any]:
        if self.scenario.parameters[index].tied is not None:
            return {}
        state = self.optimizer.state.get(self.held[index], {})
        found = {name: to_numpy(torch.as_tensor(value)) for name, value in state.items() if value is not None}
        if self.held[index] is not self.tensors[index]:
            found["master"] = to_numpy(self.held[index])
        return found


def named(values: Hyperparameters) -> dict[str, Any]:
    """As torch calls them."""
    given = {name: value for name, value in vars(values).items() if value is not None}
    return {"lr" if name == "learning_rate" else name: value for name, value in given.items()}


def disagreements(seen: Any, expected: Expectation, rank: int | None = None) -> list[str]:
    """Everything seen that is not as expected."""
    found = []
    for kind in ("gradients", "parameters"):
        for place, values in getattr(expected, kind).items():
            for index, value in enumerate(values):
                if not holds(seen[kind][place][index], value):
                    found.append(f"{kind} {place} {index}: {seen[kind][place][index]} against {value}")
    for place, norm in expected.norms.items():
        if not holds(seen["norms"][place], norm):
            found.append(f"norm {place}: {seen['norms'][place]} against {norm}")
    for place, states in expected.states.items():
        for index, state in enumerate(states):
            other = seen["states"][place][index]
            if other.keys() != state.keys() or not all(holds(other[name], value) for name, value in state.items()):
                found.append(f"state {place} {index}: {other} against {state}")
    if seen["loss_scales"] != expected.loss_scales:
        found.append(f"scales {seen['loss_scales']} against {expected.loss_scales}")
    if rank is not None:
        for place, buffers in expected.buffers.items():
            if not all(map(same_bits, seen["buffers"][place], buffers[rank])):
                found.append(f"buffers {place}: {seen['buffers'][place]} against {buffers[rank]}")
    return found


def expect(scenario: Scenario, averaging: str) -> Expectation:
    try:
        return interpret(scenario, averaging)
    except Inexact:
        assume(False)
        raise


@given(
    programs() | programs(dtypes=("float32", *SIXTEEN)), st.sampled_from(AVERAGINGS), st.randoms(use_true_random=False)
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_torch_in_one_process_does_what_the_interpreter_says(scenario: Scenario, averaging: str, random: Any) -> None:
    """torch's GradScaler does not take float16 gradients, nor ones that its optimizer does not step."""
    sixteen = any(parameter.dtype in SIXTEEN for parameter in scenario.parameters)
    assume(scenario.loss_scale is None or not sixteen)
    expected = expect(scenario, averaging)
    order = list(range(scenario.world_size))
    random.shuffle(order)
    assert disagreements(OneProcess(scenario, averaging, order).run(), expected) == []


@given(programs())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_repr_and_json_of_every_event_come_back(scenario: Scenario) -> None:
    assert eval(repr(scenario), NAMES | {"inf": INF}) == scenario
    assert Scenario.from_json(scenario.to_json()) == scenario
    assert hash(Scenario.from_json(scenario.to_json())) == hash(scenario)


def run_on(world: World, scenario: Scenario, implementation: str) -> Any:
    payload = json.dumps({"implementation": implementation, "scenario": scenario.to_json()})
    outcome = world.run(Job("properties.rank:run_program", payload, scenario.world_size))
    assert [report.error for report in outcome] == [None] * scenario.world_size
    return [report.result for report in outcome]


@given(scenario=programs(3, ("float32", "float64", *SIXTEEN)))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_ranks_do_what_the_interpreter_says(sim: World, scenario: Scenario) -> None:
    expected = expect(scenario, "sum then divide")
    for rank, seen in enumerate(run_on(sim, scenario, "impls.static_buckets:StaticBuckets")):
        assert disagreements(seen, expected, rank) == []


GRADIENTS = st.lists(st.lists(st.integers(-60, 60), min_size=1, max_size=6), min_size=1, max_size=4)
# Sums of squares 32**2 + 16**2 * 3 * 4 = 64**2 and so on: with these, norm and coefficient are exact.
SQUARES = st.sampled_from(([[32, 32, 32, 32]], [[16] * 4, [-32] * 3 + [-16] * 4 + [0]], [[64]], [[128, 0], [0]]))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", FORMATS)
@given(gradients=GRADIENTS | SQUARES, max_norm=st.sampled_from((0.5, 0.1, 1.0, 8.0, 64.0, 1e4)))
@settings(max_examples=40, deadline=None)
def test_clip_grad_norm_does_what_clipping_says(
    p: float, dtype: str, gradients: list[list[int]], max_norm: float
) -> None:
    tensors = [torch.nn.Parameter(torch.zeros(len(values), dtype=getattr(torch, dtype))) for values in gradients]
    for tensor, values in zip(tensors, gradients, strict=True):
        tensor.grad = torch.tensor(values, dtype=tensor.dtype)
    forms = [lattice.formats((dtype,), (len(values),)) for values in gradients]
    norm, form, clipped = clip([lattice.from_integers(values) for values in gradients], forms, max_norm, p)
    total = torch.nn.utils.clip_grad_norm_(iter(tensors), max_norm, p)
    assert total.dtype == getattr(torch, form)
    assert norm.contains(float(total))
    for tensor, value in zip(tensors, clipped, strict=True):
        told = value if isinstance(value, Interval) else lattice.to_float(value).astype(FORMATS[dtype].numpy)
        seen = to_numpy(tensor.grad)
        assert holds(seen, told)


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
    assert kinds.keys() >= {"gradients", "norm", "state"}
    for place, values in expected.parameters.items():
        for value in values:
            assert isinstance(value, Interval)
            assert (value.high - value.low <= 1e-5 * np.abs(value.high)).all(), place


@pytest.mark.parametrize("where", ["no_sync", "forward", "backward", "hook"])
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_an_error_of_the_callers_leaves_no_trace_on_the_ranks(sim: World, where: str, rank: int | None) -> None:
    pair = Backward(((0, 1), (1, 0)), False)
    program = (pair, Raise(where, rank), pair, Backward(((1, 0), (0, 1))), Finish(), Step())
    scenario = Scenario(2, (Parameter((1,)), Parameter((2,))), program, buffers=(Buffer((1,)),))
    expected = interpret(scenario)
    assert expected.exact
    for number, seen in enumerate(run_on(sim, scenario, "impls.static_buckets:StaticBuckets")):
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
    for number, seen in enumerate(run_on(sim, scenario, "impls.static_buckets:StaticBuckets")):
        assert disagreements(seen, expected, number) == []
