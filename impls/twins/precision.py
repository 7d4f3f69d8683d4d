"""Reductions that are right in other dtypes, or in another order of operations, than usual."""

import torch
import torch.distributed as dist

from lockstep.impls.static_buckets import Bucket, StaticBuckets


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

    claims = {**StaticBuckets.claims, "reduce_dtype": "float64"}
    odd = "everything is reduced in float64"
    bucket_class = _Wide


class _Exchanged(Bucket):
    wide: list[torch.Tensor]

    def all_reduce(self) -> dist.Work:
        self.fill()
        mine = self.buffer.to(torch.promote_types(self.buffer.dtype, torch.float32))
        self.wide = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        return dist.all_gather(self.wide, mine, async_op=True)

    def average(self, kernels: bool | None) -> None:
        total = torch.stack(self.wide).sum(0)
        total[: len(self.elements)] /= dist.get_world_size()
        self.buffer.copy_(total)
        self.hand_out()


class ExchangesInFloat32(StaticBuckets):
    """Ranks show each other their gradients in float32, and each adds them up itself: no collective reduces anything.

    What gradient compression does, which has sums that no backend knows.
    """

    claims = {**StaticBuckets.claims, "reduce_dtype": "float32", "overlaps": False}
    odd = "gradients are gathered in float32 and added up by every rank"
    bucket_class = _Exchanged


class Compressed(Bucket):
    """Travels in bfloat16, flags and all."""

    def cast(self) -> torch.Tensor:
        """The tensor that is sent in place of the buffer."""
        return self.buffer.bfloat16()

    def all_reduce(self) -> dist.Work:
        """Sends a copy."""
        self.fill()
        self.sent = self.cast()
        return dist.all_reduce(self.sent, group=self.group, async_op=True)

    def average(self, kernels: bool | None) -> None:
        """Divides in the gradients' own dtype."""
        self.buffer.copy_(self.sent)
        super().average(kernels)


class CompressesToBFloat16(StaticBuckets):
    """Casts each bucket to bfloat16, adds up in that, and casts the sum back."""

    claims = {**StaticBuckets.claims, "wire_dtype": "bfloat16"}
    odd = "gradients travel in bfloat16"
    bucket_class = Compressed


class _ExchangedInHalf(Bucket):
    def all_reduce(self) -> dist.Work:
        self.fill()
        mine = self.buffer.half().view(torch.uint8)
        self.sent = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        return dist.all_gather(self.sent, mine, group=self.group, async_op=True)

    def average(self, kernels: bool | None) -> None:
        self.buffer.copy_(torch.stack(self.sent).view(torch.float16).to(self.buffer.dtype).sum(0))
        super().average(kernels)


class ExchangesInFloat16(StaticBuckets):
    """Ranks show each other their gradients in float16, as bytes, and each adds them up itself, in their own dtype."""

    claims = {**StaticBuckets.claims, "wire_dtype": "float16", "overlaps": False}
    odd = "gradients are gathered as bytes of float16, and added up by every rank in their own dtype"
    bucket_class = _ExchangedInHalf


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
