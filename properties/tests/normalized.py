"""On every rank: a model whose weights torch's hooks make anew before each forward, in `impls.zero3` and as it is."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import spectral_norm

from lockstep.impls.zero3 import Zero3


def model() -> nn.Module:
    """Two layers, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(spectral_norm(nn.Linear(3, 2)), nn.ReLU(), spectral_norm(nn.Linear(2, 2)))


def outputs(payload: str, rank: int, world_size: int) -> dict[str, Any]:
    """Of the sharded model and of the plain one, in two forwards."""
    both, inputs = {"sharded": Zero3(model()), "plain": model()}, torch.tensor([1.0, -2.0, 3.0]) * (rank + 1)
    return {name: [each(inputs).tolist() for _ in range(2)] for name, each in both.items()}


def differentiated_twice(payload: str, rank: int, world_size: int) -> dict[str, str]:
    """What a caller is told who takes gradients of a sharded model with a graph, if it is refused."""
    inputs = torch.ones(3, requires_grad=True)
    try:
        torch.autograd.grad(Zero3(model())(inputs).sum(), inputs, create_graph=payload == "with a graph")
    except NotImplementedError as error:
        return {"refused": str(error)}
    return {}


def copied(payload: str, rank: int, world_size: int) -> dict[str, str]:
    """What a caller is told who copies a sharded model, a part of it, or its parameters, if it is refused."""
    sharded, told = Zero3(model()).module, {}
    copied = {"the model": sharded, "a layer": sharded.get_submodule("0"), "parameters": list(sharded.parameters())}
    for what, each in copied.items():
        try:
            copy.deepcopy(each)
        except NotImplementedError as error:
            told[what] = str(error)
    return told
