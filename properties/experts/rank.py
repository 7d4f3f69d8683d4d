"""The program of every rank for P21: train a model of dense parameters and of this rank's experts, step by step.

The world calls these functions by name. The input is JSON, the output plain data.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.oracle.experts import Mesh
from lockstep.properties.claim import on_one_line
from lockstep.properties.experts.mixture import Mixture, Parts
from lockstep.properties.ranks import adapter, lookup
from lockstep.worlds.devices import place

RATE = 0.5


def vector(values: Sequence[float]) -> torch.Tensor:
    """A tensor on this rank's device."""
    return torch.tensor(values, dtype=torch.float64, device=place())


class Part(nn.Module):
    """Some vectors, by number.

    ``gradients`` names the gradient of each one; vectors that it does not name are not used.
    """

    def __init__(self, kind: str, weights: Mapping[str, list[float]]) -> None:
        super().__init__()
        self.kind = kind
        for name, values in weights.items():
            of, number = name.split(".")
            if of == kind:
                self.register_parameter(number, nn.Parameter(vector(values)))

    def forward(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A scalar: this part of the loss."""
        loss = torch.zeros((), dtype=torch.float64, device=place())
        for number, parameter in self.named_parameters():
            if f"{self.kind}.{number}" in gradients:
                loss = loss + (gradients[f"{self.kind}.{number}"] * parameter).sum()
        return loss


class Probe(nn.Module):
    """A model. ``dense``: the same on every rank. ``experts``: those of this rank, by number in the whole model."""

    def __init__(self, weights: Mapping[str, list[float]]) -> None:
        super().__init__()
        self.dense, self.experts = Part("dense", weights), Part("experts", weights)

    def forward(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.dense(gradients) + self.experts(gradients)
        return loss


class Trained:
    """An implementation that wraps a model, and the model's optimizer."""

    def __init__(self, name: str, weights: Mapping[str, list[float]], mesh: Mesh) -> None:
        groups = [dist.new_group(list(mesh.group(each))) for each in range(mesh.expert)]
        own = groups[dist.get_rank() % mesh.expert]
        self.model = Probe(weights)
        named = {each: own if each.startswith("experts") else dist.group.WORLD for each in weights}
        self.wrapped: Any = lookup.find(name)(self.model, process_groups=named)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def backward(self, parts: Parts, missing: bool) -> None:
        """Run a backward to final gradients. ``missing``: experts without a gradient are no part of the loss."""
        self.optimizer.zero_grad()
        given = {name: vector(values) for name, values in parts.items() if any(values) or not missing}
        adapter.start(self.wrapped, self.model)
        loss = self.wrapped(given)
        adapter.before_backward(self.wrapped, self.model)
        loss.backward()
        adapter.finish(self.wrapped, self.model)

    def gradients(self) -> dict[str, list[float]]:
        """The gradients of this rank's parameters. None becomes zeros."""
        own = dict(self.model.named_parameters())
        found: Mapping[str, Any] = {name: parameter.grad for name, parameter in own.items()}
        if adapter.offered(self.wrapped, "full_gradients"):
            found = adapter.as_named(self.wrapped.full_gradients())
        return {
            name: [0.0] * own[name].numel() if found[name] is None else found[name].tolist() for name in sorted(own)
        }

    def weights(self) -> dict[str, list[float]]:
        """This rank's parameters."""
        own: Mapping[str, Any] = dict(self.model.named_parameters())
        names = sorted(own)
        if adapter.offered(self.wrapped, "full_gradients"):  # parameters are sharded
            own = adapter.full_parameters(self.wrapped)
        return {name: own[name].detach().tolist() for name in names}


def steps(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Run the steps before saving, or those after loading ``saved``.

    ``start``: the weights before them. ``got``: the results of each step. ``saved``: all parameters, if asked for.
    """
    asked = json.loads(payload)
    mixture = Mixture(**asked["mixture"])
    before, after = mixture.parts()
    loads = asked["saved"] is not None
    mesh, parts = (mixture.later_mesh, after) if loads else (mixture.mesh, before)
    held = [name for name in mixture.sizes if rank in mixture.holders(name, mesh)]
    weights = {name: [-1.0] * mixture.sizes[name] if loads else asked["weights"][name] for name in held}
    trained = Trained(asked["implementation"], weights, mesh)
    if loads:
        whole = {name: vector(values) for name, values in asked["saved"].items()}
        trained.wrapped.load_full(whole, None)
    seen: dict[str, Any] = {"start": trained.weights(), "got": []}
    for step in parts:
        trained.backward(step[rank], mixture.missing)
        norm = None
        if mixture.max_norm is not None:
            norm = adapter.clip(trained.wrapped, 2.0**mixture.max_norm, 2.0)
        gradients = trained.gradients()
        trained.optimizer.step()
        told = None if norm is None else float(norm)
        seen["got"].append({"gradients": gradients, "norm": told, "weights": trained.weights()})
    if mixture.loaded is not None and not loads:
        saved = adapter.full_parameters(trained.wrapped)
        seen["saved"] = {name: values.detach().tolist() for name, values in saved.items()}
    return seen


def try_out(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The error (``wrong``) in a target that is taken for a wrapper of experts, in one line; empty if there is none."""
    taken = "taken for a wrapper of dense parameters and experts, for meshes of data x expert ranks alone"
    try:
        trained = Trained(json.loads(payload)["implementation"], {"dense.0": [1.0], "experts.0": [1.0]}, Mesh(1, 1))
        trained.backward({"dense.0": [2], "experts.0": [3]}, False)
        trained.gradients()
    except Exception as error:  # including a missing package
        return {"wrong": f"{taken}; making one and a backward raised {on_one_line(error)}"}
    return {"wrong": ""}
