"""ZeRO-1: optimizer state is sharded. Reduce-scatter the gradients, step the own slice, all-gather the parameters.

Parameters and gradients are whole on every rank. After the reduction this rank's slice of a gradient is the average.
The rest of it is this rank's own gradient, of no further use.
"""

from typing import Any

import torch
from torch import nn

from lockstep.impls.sharded import IN_BUCKETS, ShardedDataParallel, buckets
from lockstep.impls.shards import Flat
from lockstep.impls.wrapper import Group


class Zero1(ShardedDataParallel):
    """Buckets of one dtype, each cut over all ranks. ``kernels``: see `impls.average`."""

    claims = {**IN_BUCKETS, "backwards": "anywhere", "stage": 1, "schedule": "reduce-scatter"}

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float = 25.0,
        kernels: bool | None = None,
        process_group: Group = None,
    ) -> None:
        super().__init__(module, buckets(module, bucket_cap_mb * 2**20), kernels, process_group=process_group)
        self._begun = False  # whether a synchronizing forward has run whose gradients are not yet averaged
        self._averaged = False  # whether gradients hold averages, and nothing that came after

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward. Earlier averages are kept apart from the gradients that backward will add."""
        if self._averaged and torch.is_grad_enabled():
            for parameter, mean in self.means.items():
                self.means[parameter] = mean.clone()
                if parameter.grad is not None:
                    parameter.grad.zero_()
            self._averaged = False
        self._begun = self._begun or self.synchronize
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Reduce bucket by bucket; the averages are then in the gradients."""
        if self._begun:
            for flat in self.trained_flats():
                self.settle(self.reduce(flat))
                for member in flat.members:
                    if member in self.means:
                        self.keep(flat, member)
            self._begun, self._averaged = False, True

    def keep(self, flat: Flat, member: nn.Parameter) -> None:
        """Keep this rank's piece of an average in the whole gradient, which stays, in row-major order."""
        whole = torch.zeros_like(member) if member.grad is None else member.grad
        member.grad = whole.detach().contiguous()
        piece = flat.piece(member, member.grad)
        self.means[member] = piece.copy_(self.means[member])
