"""Wrappers of experts that are right in unusual ways."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.experts import ExpertParallel, MeanOverGroup


class OneReductionForAll(ExpertParallel):
    """Sends a buffer with a place for every expert of all ranks, which has zeroes where this rank has none."""

    odd = "experts go over all ranks in one reduction, and yet no two of them meet"

    def finish_gradient_synchronization(self) -> None:
        own = dict(self.module.named_parameters())
        sizes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(sizes, {name: parameter.numel() for name, parameter in own.items()})
        names = sorted({name: size for each in sizes for name, size in each.items()}.items())
        like = next(self.module.parameters())
        flat = [
            own[name].grad.reshape(-1) if name in own and own[name].grad is not None else like.new_zeros(size)
            for name, size in names
        ]
        whole = torch.cat(flat) / dist.get_world_size()
        dist.all_reduce(whole)
        for (name, _), gradient in zip(names, whole.split([size for _, size in names]), strict=True):
            if name in own:
                own[name].grad = gradient.view_as(own[name]).clone()


class SharesSquares(MeanOverGroup):
    """Every rank counts its share of the squares of what it has, in float32; nothing is sent for groups of one."""

    odd = "each replica of an expert counts a part in the norm; experts that no rank used have no gradient"
    claims: Mapping[str, Any] = {**MeanOverGroup.claims, "unused": "untouched"}

    def finish_gradient_synchronization(self) -> None:
        used = {name: each.grad is not None for name, each in self.module.named_parameters()}
        some = {name: torch.tensor(float(here)) for name, here in used.items()}
        for name, here in some.items():
            dist.all_reduce(here, group=self.groups[name])
        super().finish_gradient_synchronization()
        for name, parameter in self.module.named_parameters():
            if not some[name]:
                parameter.grad = None

    def squares(self) -> torch.Tensor:
        shares = [
            each.grad.float().square().sum() / dist.get_world_size(self.groups[name])
            for name, each in self.module.named_parameters()
            if each.grad is not None
        ]
        total = torch.stack(shares).sum()
        dist.all_reduce(total)
        return total

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norm = self.squares().sqrt()
        if norm > max_norm:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad *= max_norm / float(norm)
        return norm
