"""Data parallelism for a model with experts: each parameter is averaged over the ranks that have it.

`process_groups` has the group of each parameter, by its name. A dense parameter's group are all ranks. An expert's
group are the ranks of one expert rank. Backward leaves an expert's gradient summed over the tokens that other ranks
sent to it.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Groups = Mapping[str, dist.ProcessGroup]


class ExpertParallel(nn.Module):
    """Sums each gradient over its group, and divides by the number of all ranks, whose tokens are in the sum."""

    claims: Mapping[str, Any] = {"experts": True, "unused": "zero"}

    def __init__(self, module: nn.Module, process_groups: Groups) -> None:
        super().__init__()
        self.module, self.groups = module, process_groups
        for name, parameter in module.named_parameters():
            self.start(name, parameter)

    def start(self, name: str, parameter: nn.Parameter) -> None:
        """Every rank of the group begins with the weights of its first rank."""
        dist.broadcast(parameter.data, group=self.groups[name], group_src=0)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)

    def divisor(self, name: str) -> int:
        """The number of ranks whose tokens are in a sum over the group."""
        return dist.get_world_size()

    def finish_gradient_synchronization(self) -> None:
        """Averages; a rank without a gradient takes part with zeroes."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.groups[name])
            parameter.grad /= self.divisor(name)

    def squares(self) -> torch.Tensor:
        """The sum of squares of the whole gradient: the first rank of each group counts."""
        first = [each for name, each in self.module.named_parameters() if dist.get_rank(self.groups[name]) == 0]
        own = next(self.module.parameters()).new_zeros(())
        for parameter in first:
            own += parameter.grad.square().sum()
        dist.all_reduce(own)
        return own

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clips every gradient by the norm of the whole gradient, and returns this norm."""
        norm = self.squares().sqrt()
        for parameter in self.module.parameters():
            parameter.grad *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm

    def own_parameters(self) -> dict[str, torch.Tensor]:
        """The parameters that this rank has, by their names in the whole model."""
        return {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The parameters of all ranks."""
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self.own_parameters())
        return {name: values for part in parts for name, values in part.items()}

    @torch.no_grad()
    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Any = None) -> None:
        """Takes up this rank's parameters."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(parameters[name])


class MeanOverGroup(ExpertParallel):
    """Averages each gradient over its group."""

    claims: Mapping[str, Any] = {**ExpertParallel.claims, "expert_divisor": "group"}

    def divisor(self, name: str) -> int:
        """The number of ranks that have the parameter."""
        return dist.get_world_size(self.groups[name])
