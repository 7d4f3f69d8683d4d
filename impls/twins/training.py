"""Clipping and steps that are right in unusual ways."""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from impls.naive import NaiveDataParallel
from impls.trainer import MasterOptimizer, StaticBucketsTrainer


class NormInShares(StaticBucketsTrainer):
    """Every rank takes the norm of some of the parameters, and all add up their powers."""

    odd = "each rank takes the norm of its share of the parameters, and the ranks combine them"

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """In float32 or wider, rounded to the widest dtype in the end."""
        everybodys = list(gradients)
        if not everybodys:
            return super().total_norm(everybodys, norm_type)
        widest = reduce(torch.promote_types, (gradient.dtype for gradient in everybodys))
        wide = torch.promote_types(widest, torch.float32)
        mine = everybodys[dist.get_rank() :: dist.get_world_size()]
        norms = torch.stack(
            [torch.zeros((), dtype=wide), *(torch.linalg.vector_norm(g, norm_type).to(wide) for g in mine)]
        )
        if norm_type == float("inf"):
            largest = norms.max()
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            return largest.to(widest)
        power = (norms**norm_type).sum()
        dist.all_reduce(power)
        return (power.sqrt() if norm_type == 2 else power ** (1 / norm_type)).to(widest)


class _OneForEach(MasterOptimizer):
    """A torch optimizer for each tensor, which share their state."""

    def __init__(self, kind: type[torch.optim.Optimizer], *arguments: Any) -> None:
        super().__init__(kind, *arguments)
        self.each = {}
        for held in self.held.values():
            self.each[held] = kind([{"params": [held]}], lr=1.0)
            self.each[held].state = self.inner.state

    def step(self) -> None:
        """The last tensor first."""
        for name, master in self.masters.items():
            gradient = self.named[name].grad
            master.grad = None if gradient is None else gradient.to(master.dtype)
        for group in self.inner.param_groups[::-1]:
            options = {option: value for option, value in group.items() if option != "params"}
            for held in group["params"][::-1]:
                self.each[held].param_groups[0].update(options)
                self.each[held].step()
        with torch.no_grad():
            for name, master in self.masters.items():
                if master.grad is not None:
                    self.named[name].copy_(master)


class OneOptimizerForEach(StaticBucketsTrainer):
    """Steps the parameters one by one, the last first, each by an optimizer of its own."""

    odd = "a torch optimizer for each parameter, and the last parameter is stepped first"

    optimizer_class = _OneForEach


class _InItsPlace(nn.Module):
    """Takes the place of a submodule, and calls it."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child
        self.called = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The submodule's, and a note that it was called."""
        self.called |= torch.is_grad_enabled()
        return self.child(*inputs, **named)


class WrapsEachSubmodule(NaiveDataParallel):
    """Puts a module of its own in the place of each submodule, as policies that wrap by themselves do, and knows no
    gradient of one that was never called.
    """

    odd = "each submodule is replaced by a wrapper, which sees its forward"
    claims = {**NaiveDataParallel.claims, "outside": False}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for name, child in module.named_children():
            if any(True for _ in child.parameters(recurse=False)):
                setattr(module, name, _InItsPlace(child))

    @property
    def trained(self) -> list[nn.Parameter]:
        """Of the root, and of the submodules that have been called."""
        children = self.module.children()
        idle = [child for child in children if isinstance(child, _InItsPlace) and not child.called]
        theirs = {parameter for child in idle for parameter in child.parameters()}
        return [parameter for parameter in super().trained if parameter not in theirs]
