"""Naive data parallelism for ranks that may have unequal numbers of micro-batches.

Inside `join` every forward begins with an all-reduce of two counts: the ranks that still have micro-batches, and those
that will reduce after this one. A rank that has left the loop takes part in that, and in the reductions, with zeros,
until no rank is left. Then all ranks take the parameters and buffers of one of the last.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import add_over_ranks


class Joined(NaiveAccumulation):
    """Data parallelism in which every trained parameter takes part in each micro-batch of each rank that has one."""

    claims: dict[str, Any] = {**NaiveAccumulation.claims, "joins": ("world size", "remaining ranks")}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._joining, self._by_world_size = False, True
        self._remaining = dist.get_world_size()  # how many ranks are still there
        self._reducing = 0  # how many of them will reduce after this micro-batch

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = True) -> Iterator[None]:
        """The context in which this rank loops over its micro-batches, `no_sync` included.

        Means divide by the number of all ranks, or of those that are still in their loops.
        """
        self._joining, self._by_world_size = True, divide_by_initial_world_size
        try:
            yield
        finally:
            self._joining = False
        last = dist.get_rank()
        while self.meet(present=False, reduces=False):
            last = -1
            if self._reducing:
                self.shadow()
        self.agree(last)

    def meet(self, present: bool, reduces: bool) -> int:
        """The number of ranks that are present. All ranks meet here once in each micro-batch of any rank."""
        counts = torch.tensor([float(present), float(reduces)], device=next(self.module.parameters()).device)
        dist.all_reduce(counts)
        self._remaining, self._reducing = map(int, counts.tolist())
        return self._remaining

    def shadow(self) -> None:
        """Takes part in the others' reductions with zeros."""
        for parameter in self.trained:
            dist.all_reduce(torch.zeros_like(parameter, memory_format=torch.contiguous_format))

    @torch.no_grad()
    def agree(self, candidate: int) -> None:
        """Takes the model of the highest rank that left last. ``candidate``: this one, or -1."""
        device = next(self.module.parameters()).device
        root = torch.tensor(candidate, device=device)
        dist.all_reduce(root, op=dist.ReduceOp.MAX)
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(tensor, src=int(root))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if self._joining:
            self.meet(present=True, reduces=self.synchronize)
        return super().forward(*inputs, **named)

    def divisor(self) -> int:
        """The divisor of the sum over ranks."""
        return dist.get_world_size() if self._by_world_size or not self._joining else self._remaining

    def finish_gradient_synchronization(self) -> None:
        """Sums over ranks, then divides."""
        if self.synchronize:
            for parameter in self.trained:
                if parameter.grad is not None:
                    add_over_ranks(parameter.grad)
                    parameter.grad /= self.divisor()
