"""A program in one process with plain torch: real autograd, optimizers, GradScaler and clipping, the mean by hand."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Clip,
    CopyGradients,
    DropLoss,
    Duplicate,
    EndJoin,
    Evaluate,
    Finish,
    Freeze,
    Join,
    Load,
    Move,
    Raise,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    SwapWeights,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.forwards import by_forward
from lockstep.oracle.initial import initial_parameters
from lockstep.oracle.model import Hyperparameters
from lockstep.oracle.program import Scenario
from lockstep.properties.ranks.probes import to_numpy


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
        self.divisor: int | None = None  # of the next mean; None: the number of all ranks
        self.by_those_that_remain = False
        self.begin()

    def begin(self) -> None:
        """Optimizers, masters and scaler, from the values now."""
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
        kind = getattr(torch.optim, scenario.optimizer)
        apart = any(event.groups is not None for event in scenario.program if isinstance(event, Step))
        self.by_group = {n: kind([group], **base) for n, group in enumerate(groups) if apart and group["params"]}
        self.optimizers = [*self.by_group.values()] or [kind(groups, **base)]
        scale = scenario.loss_scale
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=scale.initial if scale else 1.0, growth_interval=scale.growth_interval if scale else 1
        )
        self.scaler.scale(torch.ones(()))  # it makes its state when it is first used

    def run(self) -> dict[str, dict[int, Any]]:
        """What is seen, as `properties.ranks.program.run_program` reports it."""
        batch = 0
        for place, event in enumerate(self.scenario.program):
            match event:
                case Backward():
                    if event.zeroes is not None:
                        self.zero(event.zeroes.set_to_none)
                    remaining = [rank for rank in range(self.scenario.world_size) if rank not in event.gone]
                    self.divisor = len(remaining) if self.by_those_that_remain else None
                    for rank in event.gone:
                        self.local[rank].clear()
                    for rank in remaining:
                        self.backward(batch, rank, rank in event.overflow)
                    batch += 1
                case Finish():
                    self.finish()
                case Unscale():
                    self.scaler.unscale_(*self.optimizers)
                case Clip():
                    norm = torch.nn.utils.clip_grad_norm_(self.unique(), event.max_norm, event.norm_type)
                    self.seen["norms"][place] = to_numpy(norm)
                case Step():
                    self.step(event)
                    self.seen["states"][place] = [self.state(index) for index in range(len(self.tensors))]
                    if self.scenario.loss_scale:
                        self.seen["loss_scales"][place] = self.scaler.get_scale()
                case ZeroGrad():
                    self.zero(event.set_to_none)
                case SetHyperparameters():
                    numbers = [*self.by_group] or range(len(self.scenario.groups) + 1)
                    groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
                    for number, group in zip(numbers, groups, strict=True):
                        if event.group in (None, number):
                            group.update(named(event.values))
                case Write():
                    for index in event.parameters:
                        self.tensors[index].data.neg_().add_(0)  # and no zero is negative
                case SaveAndLoad():
                    self.zero(True)
                    if not event.optimizer:
                        self.begin()
                case Save():
                    self.save()
                case Load():
                    self.zero(True)
                    self.load(event)
                case Join():
                    self.by_those_that_remain = event.divide_by == "remaining ranks"
                case EndJoin():
                    self.zero(True)
                    self.divisor, self.by_those_that_remain = None, False
                case Raise():
                    if event.drops_gradients:
                        self.zero(True)
                case Move():
                    for tensor in self.unique():
                        tensor.data = tensor.data.clone()
                case CopyGradients():
                    self.local = [{index: each.clone() for index, each in mine.items()} for mine in self.local]
                case SwapWeights():
                    kept = [tensor.detach().clone() for tensor in self.unique()]
                    for tensor, values in zip(self.unique(), kept, strict=True):
                        tensor.data.fill_(-1)
                        tensor.data.copy_(values)
                case ActAlone() | DropLoss() | Duplicate() | Evaluate() | Freeze():
                    pass  # of which nothing is to be seen
                case _:
                    raise NotImplementedError(f"{event!r}")
            if isinstance(event, (Finish, Unscale, Clip)):
                self.seen["gradients"][place] = [to_numpy(tensor.grad) for tensor in self.tensors]
                for mine in self.local:
                    mine.update({i: t.grad.clone() for i, t in enumerate(self.tensors) if t.grad is not None})
            elif isinstance(event, (Step, Write, SaveAndLoad, Load, EndJoin)):
                self.seen["parameters"][place] = [to_numpy(tensor) for tensor in self.tensors]
        return self.seen

    def unique(self) -> list[torch.nn.Parameter]:
        return list(dict.fromkeys(self.tensors))

    def backward(self, batch: int, rank: int, overflow: bool) -> None:
        event = self.scenario.microbatches[batch]
        shares = by_forward(self.numbers[rank][batch], event.forwards)
        for each in [shares] * event.passes if event.backwards == event.passes else [[share] for share in shares]:
            self.go_back(self.scenario.order(batch, rank), rank, each, overflow)

    def go_back(self, used: Sequence[int], rank: int, shares: list[Any], overflow: bool) -> None:
        """One backward, through the forwards that have these shares."""
        if not used:
            return
        loss: Any = 0.0
        for share in shares:
            for index in used:
                tensor = self.tensors[index]
                c = torch.tensor(share[index], dtype=tensor.dtype)
                c = torch.full_like(c, torch.inf) if overflow else c
                loss = loss + (c * (tensor if self.scenario.probe == "linear" else tensor.square() / 2)).sum()
        tensors = [self.tensors[index] for index in used]
        mine = self.local[rank]
        if self.scenario.loss_scale:
            loss = loss * self.scaler.get_scale()
        loss = loss * 2.0**self.scenario.caller.doublings
        for tensor, gradient in zip(
            dict.fromkeys(tensors), torch.autograd.grad(loss, list(dict.fromkeys(tensors))), strict=True
        ):
            for index, other in enumerate(self.tensors):
                if other is tensor:
                    mine[index] = mine[index] + gradient if index in mine else gradient

    def finish(self) -> None:
        ranks = self.divisor or self.scenario.world_size
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

    def step(self, event: Step) -> None:
        for tensor, master in zip(self.tensors, self.held, strict=True):
            if master is not tensor:
                master.grad = None if tensor.grad is None else tensor.grad.float()
        if self.scenario.loss_scale:
            self.scaler.step(*self.optimizers)
            self.scaler.update()
        else:
            for optimizer in self.optimizers if event.groups is None else [self.by_group[n] for n in event.groups]:
                optimizer.step()
        with torch.no_grad():
            for tensor, master in zip(self.tensors, self.held, strict=True):
                if master is not tensor:
                    tensor.copy_(master)
        for mine in self.local:  # unscaling has changed them
            mine.update({i: t.grad.clone() for i, t in enumerate(self.tensors) if t.grad is not None})

    def save(self) -> None:
        held = {index: tensor.detach().clone() for index, tensor in enumerate((*self.tensors, *self.held))}
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        self.saved = copy.deepcopy((held, states, self.scaler.state_dict()))

    def load(self, event: Load) -> None:
        """Masters by their values, the rest by torch's own state dicts."""
        held, states, scaler = copy.deepcopy(self.saved)
        with torch.no_grad():
            for index, tensor in enumerate((*self.tensors, *self.held)):
                tensor.copy_(held[index])
        if event.optimizer:
            for optimizer, state in zip(self.optimizers, states, strict=True):
                optimizer.load_state_dict(state)
            self.scaler.load_state_dict(scaler)
        else:
            self.begin()

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
        states = (optimizer.state.get(self.held[index], {}) for optimizer in self.optimizers)
        state: dict[str, Any] = next(filter(None, states), {})
        found = {name: to_numpy(torch.as_tensor(value)) for name, value in state.items() if value is not None}
        if self.held[index] is not self.tensors[index]:
            found["master"] = to_numpy(self.held[index])
        return found


def named(values: Hyperparameters) -> dict[str, Any]:
    """As torch calls them."""
    given = {name: value for name, value in vars(values).items() if value is not None}
    return {"lr" if name == "learning_rate" else name: value for name, value in given.items()}
