"""What every data-parallel wrapper here does beside its algorithm: the same start on every rank, and `no_sync`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

# What the correct wrappers here promise, beside what is particular to each.
ROBUST = {
    "several_dtypes": True,
    "forwards": True,
    "sixteen_bits": True,
    "raises": True,
    "freezing": True,
    "tied": True,
    "outside": True,
    "empty": True,
    "layouts": True,
    "replaces": True,
    "buffers": "initial",
    "cost": True,
}


class DataParallel(nn.Module):
    """Wraps a module and is called like it. An algorithm reads ``synchronize`` and adds when to communicate what."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.synchronize = True
        broadcast_from_rank_zero(module)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that the module now has and trains, each tensor once: a caller may freeze and replace some."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients accumulate locally inside, where forward and backward both belong.

        Restores what held before, so that it nests, also when it is left by an exception.
        """
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before


@torch.no_grad()
def broadcast_from_rank_zero(module: nn.Module) -> None:
    """Overwrites parameters, frozen ones too, and buffers with rank 0's. Collective: every rank calls it."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()  # NCCL takes no other
        dist.broadcast(whole, src=0)
        if whole is not tensor:
            tensor.copy_(whole)


def add_over_ranks(tensor: torch.Tensor) -> None:
    """All-reduces in place, whatever the strides."""
    whole = tensor.contiguous()  # NCCL takes no other
    dist.all_reduce(whole)
    if whole is not tensor:
        tensor.copy_(whole)
