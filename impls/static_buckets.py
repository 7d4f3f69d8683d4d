"""Bucketed data parallelism with buckets that are fixed as long as the same parameters are trained.

Parameters go into buckets in reverse registration order, roughly the order in which backward reaches them, one dtype to
a bucket, up to a cap. Each bucket is one contiguous buffer, and gradients are views of it. A bucket is sent when all
its members are final *and every earlier bucket was sent*. So all ranks send the same buckets in the same order,
whatever the order of their hooks.

Members that took no part are sent as zeros after backward, by the method that finishes the synchronization. A bucket
may thus be sent in backward on one rank and after it on another. So the caller's own collectives in the same group come
before backward or after the synchronization.

Behind its elements a bucket carries one flag per member: whether this rank has a gradient for it. Summed like the rest,
the flags tell how many ranks have one; a parameter that no rank used keeps its gradient untouched.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.average import average_
from lockstep.impls.wrapper import ROBUST, DataParallel, Group


class Bucket:
    """Some parameters of one dtype, the buffer that their gradients are views of, and one flag for each."""

    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        self.group = group
        sizes = [parameter.numel() for parameter in members]
        self.buffer = members[0].new_zeros(sum(sizes) + len(members))
        *slices, self.flags = self.buffer.split([*sizes, len(members)])
        self.elements = self.buffer[: sum(sizes)]
        self.views = {parameter: part.view_as(parameter) for part, parameter in zip(slices, members, strict=True)}
        self.waiting_for = set(members)

    def adopt(self, parameter: nn.Parameter) -> None:
        """Move a gradient into the buffer, if it is not there already."""
        view = self.views[parameter]
        if parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view

    def fill(self) -> None:
        """Fill the buffer to be sent; members without a gradient count as zeros."""
        for parameter, view in self.views.items():
            if parameter.grad is None:
                view.zero_()
            else:
                self.adopt(parameter)
        self.flags.copy_(torch.tensor([parameter.grad is not None for parameter in self.views]))

    def all_reduce(self) -> dist.Work:
        """Sends the buffer."""
        self.fill()
        return dist.all_reduce(self.buffer, group=self.group, async_op=True)

    def average(self, kernels: bool | None) -> None:
        """After the all-reduce: divide, and hand out the gradients."""
        average_(self.elements, dist.get_world_size(self.group), kernels)
        self.hand_out()

    def hand_out(self) -> None:
        """Hands each gradient that some rank had to its parameter."""
        for (parameter, view), ranks in zip(self.views.items(), self.flags.tolist(), strict=True):
            if ranks:
                parameter.grad = view


def assign_buckets(parameters: list[nn.Parameter], cap: float) -> list[list[nn.Parameter]]:
    """Parameters in buckets of one dtype and at most ``cap`` bytes; a larger parameter has a bucket of its own."""
    buckets: list[list[nn.Parameter]] = []
    last: dict[torch.dtype, list[nn.Parameter]] = {}  # the bucket being filled, by dtype
    for parameter in parameters:
        bucket = last.get(parameter.dtype, [])
        if not bucket or sum(member.nbytes for member in bucket) + parameter.nbytes > cap:
            bucket = []
            buckets.append(bucket)
        bucket.append(parameter)
        last[parameter.dtype] = bucket
    return buckets


class StaticBuckets(DataParallel):
    """Fixed buckets, sent in one order. ``kernels``: see `impls.average`."""

    claims = {
        **ROBUST,
        "callers_collectives": False,
        "accumulation": True,
        "unused": "untouched",
        "idle_ranks": True,
        "reentrant_checkpointing": "each once",
        "cap_from": "first step",
        "overlaps": True,
        "unfreezing": True,
    }

    bucket_class = Bucket

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float = 25.0,
        kernels: bool | None = None,
        process_group: Group = None,
    ) -> None:
        super().__init__(module, process_group)
        self._cap, self._kernels = bucket_cap_mb * 2**20, kernels
        self._begun = False  # whether a synchronizing forward has run whose gradients are not yet averaged
        self._in_flight: list[dist.Work] = []  # one for each bucket sent, in order
        self._hooked: set[nn.Parameter] = set()
        self._assign(self.trained)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        """Makes the buckets anew, and hooks the parameters that have none yet."""
        self._assigned = trained
        self._buckets = [self.bucket_class(members, self.group) for members in assign_buckets(trained[::-1], self._cap)]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.views}
        for parameter in trained:
            if parameter not in self._hooked:
                self._hooked.add(parameter)
                parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self.prepare()
        return super().forward(*inputs, **named)

    def prepare(self) -> None:
        """Prepare for a forward: a bucket that a backward cut short has sent must not meet the gradients that
        accumulate next.

        If other parameters are trained than before, frozen or replaced since, on every rank alike, buckets are made
        anew.
        """
        for work in self._in_flight:
            work.wait()
        self._in_flight.clear()
        trained = self.trained
        if list(map(id, trained)) != list(map(id, self._assigned)):
            with torch.inference_mode(False):  # an evaluation may come first, and buckets outlive it
                self._assign(trained)
        if self.synchronize:
            for bucket in self._buckets:
                bucket.waiting_for = set(bucket.views)
            self._begun = True

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        bucket = self._bucket_of[parameter]
        bucket.adopt(parameter)
        if self.synchronize:
            bucket.waiting_for.discard(parameter)
            for ready in self._buckets[len(self._in_flight) :]:
                if ready.waiting_for:
                    break
                self._in_flight.append(ready.all_reduce())

    def _send_the_rest(self) -> None:
        for bucket in self._buckets[len(self._in_flight) :]:
            self._in_flight.append(bucket.all_reduce())

    def finish_gradient_synchronization(self) -> None:
        """Send the buckets that still wait for members that took no part, wait for all, and average."""
        if self._begun:
            self._send_the_rest()
            for work, bucket in zip(self._in_flight, self._buckets, strict=True):
                work.wait()
                bucket.average(self._kernels)
            self._in_flight.clear()
            self._begun = False
