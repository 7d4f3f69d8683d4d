"""Reductions that are right in other dtypes, or in another order of operations, than usual."""

import torch
import torch.distributed as dist

from impls.static_buckets import Bucket, StaticBuckets


class _Wide(Bucket):
    wide: torch.Tensor

    def all_reduce(self) -> dist.Work:
        self.fill()
        self.wide = self.buffer.double()
        return dist.all_reduce(self.wide, async_op=True)

    def average(self, kernels: bool | None) -> None:
        self.wide[: len(self.elements)] /= dist.get_world_size()
        self.buffer.copy_(self.wide)
        self.hand_out()


class ReducesInFloat64(StaticBuckets):
    """Adds up and divides in float64, and rounds the mean to the gradients' dtype once."""

    claims = {**StaticBuckets.claims, "wire": "float64"}
    odd = "everything is reduced in float64"
    bucket_class = _Wide


class _DividedFirst(Bucket):
    def all_reduce(self) -> dist.Work:
        self.fill()
        self.elements /= dist.get_world_size()
        return dist.all_reduce(self.buffer, async_op=True)

    def average(self, kernels: bool | None) -> None:
        self.hand_out()


class DividesFirst(StaticBuckets):
    """Divides every gradient by the number of ranks, and then adds them up."""

    claims = {**StaticBuckets.claims, "averaging": "divide then sum"}
    odd = "gradients are divided before they are added up"
    bucket_class = _DividedFirst
