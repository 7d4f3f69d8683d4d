"""WRONG on purpose: each rank fills its buckets in the order in which its own hooks fire.

This is the bug that started Lockstep. If the order differs between ranks, one all-reduce adds up buckets that hold
different parameters. Buckets of equal size corrupt gradients silently; unequal ones crash or hang a real backend.
"""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import DataParallel


class HookOrderBuckets(DataParallel):
    """Gradients join the current bucket as their hooks fire; a full bucket is all-reduced asynchronously."""

    claims = {"accumulation": True, "overlaps": True}
    known_fault = "hooks that fire in different orders on different ranks fill the buckets with different parameters"
    source = "D01 V https://github.com/NVIDIA/Megatron-LM/pull/2218"
    killed_by: tuple[str, ...] = (
        "test_gradients_equal_the_mean_over_ranks",
        "test_every_rank_issues_the_same_collectives",
        "test_the_result_does_not_depend_on_the_order_in_which_hooks_fire",
    )

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module)
        self._cap = bucket_cap_mb * 2**20
        self._bucket: list[torch.Tensor] = []
        self._in_flight: list[tuple[dist.Work, torch.Tensor, list[torch.Tensor]]] = []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self.synchronize:
            assert parameter.grad is not None
            self._bucket.append(parameter.grad)
            if sum(gradient.nbytes for gradient in self._bucket) >= self._cap:
                self._send()

    def _send(self) -> None:
        flat = torch.cat([gradient.reshape(-1) for gradient in self._bucket])
        self._in_flight.append((dist.all_reduce(flat, async_op=True), flat, self._bucket))
        self._bucket = []

    def finish_gradient_synchronization(self) -> None:
        """Sends the last, partly filled bucket, waits for all, divides, and copies back."""
        if self._bucket:
            self._send()
        for work, flat, gradients in self._in_flight:
            work.wait()
            flat /= dist.get_world_size()
            for gradient, averaged in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(averaged.view_as(gradient))
        self._in_flight.clear()
