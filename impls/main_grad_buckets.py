"""Bucketed data parallelism that accumulates in fp32, whatever the parameters' dtypes.

Each parameter has a `main_grad`, a part of a bucket in float32 (float64 for float64). Its gradient is moved there as
soon as it is final; `zero_grad` zeroes both. A callback at the end of a backward that synchronizes sends the buckets,
in one order on every rank. Finishing sets each gradient from the mean. Behind its elements a bucket carries one flag
per member, as in `impls.static_buckets`.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.static_buckets import assign_buckets
from lockstep.impls.wrapper import ROBUST, DataParallel


class MainGradBucket:
    """Some parameters of one dtype, their main gradients in one buffer, and which of them have one."""

    def __init__(self, members: list[nn.Parameter]) -> None:
        sizes = [parameter.numel() for parameter in members]
        dtype = torch.promote_types(members[0].dtype, torch.float32)
        self.buffer = members[0].new_zeros(sum(sizes) + len(members), dtype=dtype)
        *parts, self.flags = self.buffer.split([*sizes, len(members)])
        self.main_grads = {parameter: part.view_as(parameter) for part, parameter in zip(parts, members, strict=True)}
        self.filled: set[nn.Parameter] = set()

    def take(self, parameter: nn.Parameter) -> None:
        """Moves a gradient, if there is one, into the buffer."""
        if parameter.grad is not None:
            self.main_grads[parameter] += parameter.grad
            parameter.grad = None
            self.filled.add(parameter)

    def all_reduce(self) -> dist.Work:
        """Take the gradients that backward did not reach, such as the last mean of a parameter that took no part, and
        send.
        """
        for parameter in self.main_grads:
            self.take(parameter)
        self.flags.copy_(torch.tensor([parameter in self.filled for parameter in self.main_grads]))
        return dist.all_reduce(self.buffer, async_op=True)

    def zero(self, to_none: bool) -> None:
        """Zeroes the main gradients; or there are none any more."""
        self.buffer.zero_()
        if to_none:
            self.filled.clear()

    def hand_out(self) -> None:
        """Sets each gradient that some rank had from the mean, and begins anew."""
        self.buffer[: self.buffer.numel() - self.flags.numel()] /= dist.get_world_size()
        for (parameter, main_grad), ranks in zip(self.main_grads.items(), self.flags.tolist(), strict=True):
            if ranks:
                parameter.grad = main_grad.to(parameter.dtype, copy=True)
        self.zero(to_none=True)


class MainGradBuckets(DataParallel):
    """fp32 main gradients in buckets that are sent when backward is over.

    A caller that drops a window halfway calls `zero_grad` of this class. An optimizer's `zero_grad` zeroes ``.grad``
    alone, which is empty by then. Not claimed: parameters that are replaced, which have no hooks.
    """

    claims = {
        **ROBUST,
        "replaced_parameters": False,
        "accumulation": True,
        "cap_from": "first step",
        "unused": "untouched",
        "idle_ranks": True,
        "reduce_dtype": "float32",
        "direct_forwards": True,
        "moved_parameters": True,
    }

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module)
        self._buckets = [
            MainGradBucket(members) for members in assign_buckets(self.trained[::-1], bucket_cap_mb * 2**20)
        ]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.main_grads}
        self._queued = False  # whether the callback of this backward is queued
        self._in_flight: list[dist.Work] = []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
        module.register_forward_pre_hook(self._before_forward)  # of the module's own: a caller may go around this one

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero all gradients, accumulated ones that are not averaged yet included."""
        super().zero_grad(set_to_none)
        for bucket in self._buckets:
            bucket.zero(set_to_none)

    def _before_forward(self, *_: Any) -> None:
        self._queued = False  # of a backward that was cut short no callback has run

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._bucket_of[parameter].take(parameter)
        if self.synchronize and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._send)

    def _send(self) -> None:
        self._queued = False
        self._in_flight = [bucket.all_reduce() for bucket in self._buckets]

    def finish_gradient_synchronization(self) -> None:
        """Wait for all buckets and set the gradients. If this rank used no parameter, no hook has sent them: send them
        first.
        """
        if not self._in_flight:
            self._send()
        for work, bucket in zip(self._in_flight, self._buckets, strict=True):
            work.wait()
            bucket.hand_out()
        self._in_flight = []
