"""What ranks run in the tests of `StaticBuckets`."""

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lockstep.impls.static_buckets import StaticBuckets
from lockstep.properties.ranks.probes import to_numpy


class Model(nn.Module):
    """Parameters of the given sizes and dtypes; the loss is the sum of (10 * rank + 1 + index) * parameter."""

    def __init__(self, members: list[tuple[int, str]]) -> None:
        super().__init__()
        tensors = [torch.ones(size, dtype=getattr(torch, dtype)) for size, dtype in members]
        self.members = nn.ParameterList(nn.Parameter(tensor) for tensor in tensors)

    def forward(self, rank: int, uses: list[int]) -> torch.Tensor:
        loss = torch.zeros(())
        for index in reversed(uses):  # backward reaches them in the order of ``uses``
            loss = loss + ((10 * rank + 1 + index) * self.members[index]).sum()
        return loss


def gradients(module: nn.Module) -> list[Any]:
    """Copies of what the parameters have."""
    return [to_numpy(parameter.grad) for parameter in module.parameters()]


def with_static_buckets(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: the members, the cap in bytes, and for each backward the parameters that each rank uses, in order."""
    asked = json.loads(payload)
    model = Model(asked["members"])
    wrapped = StaticBuckets(model, asked["cap"] / 2**20)
    seen = []
    for uses in asked["uses"]:
        model.zero_grad()
        wrapped(rank, uses[rank]).backward()
        wrapped.finish_gradient_synchronization()
        seen.append(gradients(model))
    return {"gradients": seen}


class Tied(nn.Module):
    """One weight, used twice under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.first(x) + self.second(y)).sum()


def with_tied_weights(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Two backwards through a model whose two layers share their weight."""
    model = Tied()
    wrapped = StaticBuckets(model)
    seen = []
    for _ in range(2):
        model.zero_grad()
        wrapped(torch.tensor([1.0 + rank]), torch.tensor([10.0 + rank])).backward()
        wrapped.finish_gradient_synchronization()
        seen.append(gradients(model))
    return {"gradients": seen}


class CutShort(RuntimeError):
    """What stops a backward here."""


def stop(_: Any) -> None:
    raise CutShort


def after_a_backward_cut_short(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """A backward that an exception ends halfway on every rank; then a sound one. Payload: where the first ended."""
    where = json.loads(payload)
    model = Model([(1, "float32"), (2, "float32"), (3, "float32")])
    wrapped = StaticBuckets(model, 8 / 2**20)  # buckets: the third, then the second, then the first

    def fail(attempt: Callable[[], object]) -> None:
        with contextlib.suppress(CutShort):
            attempt()

    if where == "in no_sync":

        def attempt() -> None:
            with wrapped.no_sync():
                raise CutShort

        fail(attempt)
    else:
        hook = model.members[where].register_hook(stop)
        fail(wrapped(rank, [2, 1, 0]).backward)
        hook.remove()
    model.zero_grad()
    wrapped(rank, [0, 1, 2]).backward()
    wrapped.finish_gradient_synchronization()
    once = gradients(model)
    wrapped.finish_gradient_synchronization()  # nothing is left to finish
    return {"gradients": once, "again": gradients(model)}
