"""Wrappers of collectives that are right in unusual ways."""

from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.collective_wrappers import Collectives, Group


class _Exchange(torch.autograd.Function):
    """All-to-all of rows, whose transpose it is itself."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: Group) -> torch.Tensor:
        context.group = group
        values = values.contiguous()
        result = torch.empty_like(values)
        dist.all_to_all_single(result, values, group=group)
        return result

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return _Exchange.apply(gradient, context.group), None


class ByAllToAll(Collectives):
    """Everything as one exchange of rows and what autograd knows by itself; nothing is reduced on the way."""

    odd = "every collective is an all-to-all, and backward is what autograd makes of it"

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Every member sends everything to everybody."""
        ranks = dist.get_world_size(group)
        result: torch.Tensor = _Exchange.apply(values.repeat(ranks, *(1,) * (values.dim() - 1)), group)
        return result

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Every member adds up what it is sent, from the last member to the first."""
        ranks = dist.get_world_size(group)
        shares: torch.Tensor = _Exchange.apply(values, group).unflatten(0, (ranks, len(values) // ranks))
        return shares.flip(0).mean(0) if reduction == "average" else shares.flip(0).sum(0)

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Gathers, then adds up."""
        shares = ByAllToAll.all_gather(values.unsqueeze(0), group)
        return shares.mean(0) if reduction == "average" else shares.sum(0)

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """Gathers, then picks the root's."""
        members = dist.get_process_group_ranks(group)
        return ByAllToAll.all_gather(values.unsqueeze(0), group)[members.index(root)]


class InPlace(Collectives):
    """Saves the memory of a result, as is usual where autograd has no part."""

    odd = "all_reduce and broadcast work in what they are given, and return it"
    claims = {**Collectives.claims, "collectives": ("all_reduce", "broadcast"), "differentiable": False}

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """The given tensor, with the result in it."""
        return values.copy_(Collectives.all_reduce(values, reduction, group))

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """The given tensor, with the result in it."""
        return values.copy_(Collectives.broadcast(values, root, group))
