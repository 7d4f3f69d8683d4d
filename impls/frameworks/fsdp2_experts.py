"""torch's FSDP2 on two meshes: dense parameters are sharded over all ranks, experts over the ranks that have them.

Rank r of a mesh of data x expert ranks has the expert rank r modulo their number. Gradients are final when backward
returns. Every rank uses all its parameters in every forward, an expert without tokens with a gradient of zero: else
gathers and reductions do not pair up.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lockstep.impls.frameworks.fsdp2 import _like, _whole


class FSDP2Experts(nn.Module):
    """Experts are divided by the number of all ranks, as torchtitan has it: by `set_gradient_divide_factor`.

    Experts on one rank each are not sharded: torch 2.13 divides twice in float64 if their mesh has one rank.
    """

    claims: Mapping[str, Any] = {"experts": True}
    why: Mapping[str, str] = {
        "experts": "`fully_shard` takes a mesh for each module; the divisor is the one of torchtitan"
    }
    as_it_comes = False

    def __init__(self, module: nn.Module, process_groups: Mapping[str, dist.ProcessGroup]) -> None:
        super().__init__()
        device, ranks = next(module.parameters()).device.type, dist.get_world_size()
        replicas = min(dist.get_world_size(group) for group in process_groups.values())
        dense = init_device_mesh(device, (ranks,))
        experts = init_device_mesh(device, (replicas, ranks // replicas), mesh_dim_names=("data", "expert"))["data"]
        whole: set[nn.Parameter] = set()
        for prefix, unit in module.named_children():
            if process_groups[f"{prefix}.{next(unit.named_parameters())[0]}"] is dist.group.WORLD:
                fully_shard(unit, mesh=dense)
            elif replicas > 1 or self.as_it_comes:
                sharded: Any = fully_shard(unit, mesh=experts)
                if not self.as_it_comes:
                    sharded.set_gradient_divide_factor(float(ranks))
            else:
                whole |= set(unit.parameters())
        for parameter in whole:
            parameter.register_hook(lambda gradient: gradient / ranks)
        self.module: Any = fully_shard(module, mesh=dense, ignored_params=whole)
        self.parts: dict[str, Any] = dict(module.named_parameters())

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """torch's own function takes no tensors of two meshes. Each element is on one rank, so all ranks add up."""
        shards = [_local(part.grad) for part in self.parts.values()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        norm = squares.sqrt()
        for shard in shards:
            shard *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of the parameters that this rank has a shard of, gathered."""
        return {name: _whole(part.grad) for name, part in self.parts.items()}

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter, gathered from its ranks, with the experts of all ranks."""
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, {name: _whole(part).detach().cpu() for name, part in self.parts.items()})
        return {name: values for each in told for name, values in each.items()}

    @torch.no_grad()
    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Any = None) -> None:
        """Cuts this rank's parameters anew."""
        for name, part in self.parts.items():
            part.copy_(_like(part, parameters[name]) if isinstance(part, DTensor) else parameters[name])


class FSDP2ExpertsAsTheyCome(FSDP2Experts):
    """Nothing is set: the mean over the mesh, which for an expert are the ranks that have it."""

    claims: Mapping[str, Any] = {**FSDP2Experts.claims, "expert_divisor": "group"}
    why = {
        "experts": "`fully_shard` takes a mesh for each module",
        "expert_divisor": "nothing is set: the mean over the mesh, the ranks that have an expert",
    }
    as_it_comes = True


def _local(gradient: Any) -> torch.Tensor:
    """The part of a gradient that is on this rank."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
