"""A wrapper with four defects that touch different things."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class FourDefects(nn.Module):
    """It reduces in the order in which hooks fire, leaves out scalars, starts frozen parameters apart, and lets the end
    of an inner `no_sync` switch synchronization on.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.synchronize = module, True
        self.works: list[Any] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                dist.broadcast(parameter.data, 0)
                parameter.register_post_accumulate_grad_hook(self.reduce)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def reduce(self, parameter: torch.Tensor) -> None:
        if self.synchronize and parameter.dim() > 0:
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
            self.works.append(dist.all_reduce(parameter.grad, async_op=True))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = True

    def finish_gradient_synchronization(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()
