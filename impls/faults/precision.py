"""Digits lost on the way to the mean, in one known way each."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import Bucket, StaticBuckets
from lockstep.impls.wrapper import broadcast_from_rank_zero

WIRE = ("test_gradients_travel_in_their_own_dtype_or_a_wider_one",)
ORDER = ("test_exact_sums_do_not_depend_on_the_order_of_reduction",)
SHORT = ("test_sixteen_bit_gradients_are_exact_where_their_sums_are",)
MANY = ("test_the_error_does_not_grow_with_the_number_of_micro_batches",)
MEAN = ("test_no_sum_overflows_where_the_mean_is_representable",)


class _Sent:
    """An all-reduce of a copy in another dtype."""

    def __init__(self, whole: torch.Tensor, wire: torch.dtype) -> None:
        self.whole, self.sent = whole, whole.to(wire)
        self.work = dist.all_reduce(self.sent, async_op=True)

    def wait(self) -> None:
        """Waits, and puts the sum back."""
        self.work.wait()
        self.whole.copy_(self.sent)


class _InBfloat16(Bucket):
    def wire(self) -> torch.dtype:
        """In which dtype it is sent."""
        return torch.bfloat16

    def all_reduce(self) -> Any:
        self.fill()
        return _Sent(self.buffer, self.wire())


class _InFloat16(_InBfloat16):
    def wire(self) -> torch.dtype:
        return torch.float16


class _InFloat32(_InBfloat16):
    def wire(self) -> torch.dtype:
        return torch.float32 if self.buffer.dtype is torch.float64 else self.buffer.dtype


class ReducesInBfloat16(StaticBuckets):
    """Casts every bucket to bfloat16 for the reduction, and promises nothing of the kind."""

    known_fault = "gradients are reduced in bfloat16 whatever their dtype"
    source = "J04 V https://github.com/pytorch/pytorch/issues/186998"
    killed_by = WIRE + ORDER
    bucket_class = _InBfloat16


class RefreshesParametersToo(StaticBuckets):
    """The same, and rank 0's parameters go out again with every synchronization, in their own dtype."""

    known_fault = "gradients are reduced in bfloat16, beside as many elements of parameters in float32"
    source = "J04 V https://github.com/pytorch/pytorch/issues/186998"
    killed_by = WIRE
    claims = {**StaticBuckets.claims, "cost": False}
    bucket_class = _InBfloat16

    def finish_gradient_synchronization(self) -> None:
        """Averages, and broadcasts."""
        super().finish_gradient_synchronization()
        broadcast_from_rank_zero(self.module)


class ReducesInFloat16(StaticBuckets):
    """The same in float16, which overflows as well."""

    known_fault = "gradients are reduced in float16 whatever their dtype"
    source = "recipe"
    killed_by = WIRE + ORDER
    bucket_class = _InFloat16


class ReducesInFloat32(StaticBuckets):
    """Nothing wider than float32 is sent."""

    known_fault = "float64 gradients are reduced in float32"
    source = "recipe"
    killed_by = WIRE
    bucket_class = _InFloat32


class BucketsByElementSize(NaiveAccumulation):
    """One bucket for all gradients whose elements are of one size."""

    known_fault = "bfloat16 and float16 share a bucket, and values pass through the first one's dtype"
    source = "recipe: hpcaitech/ColossalAI#675, the first dtype taken for all"
    killed_by = SHORT

    def finish_gradient_synchronization(self) -> None:
        """Casts into the bucket, and back."""
        if not self.synchronize:
            return
        by_size: dict[int, list[torch.Tensor]] = {}
        for parameter in self.trained:
            if parameter.grad is not None:
                by_size.setdefault(parameter.element_size(), []).append(parameter.grad)
        for gradients in by_size.values():
            bucket = torch.cat([gradient.flatten().to(gradients[0].dtype) for gradient in gradients])
            dist.all_reduce(bucket)
            bucket /= dist.get_world_size()
            for gradient, mean in zip(gradients, bucket.split([each.numel() for each in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))


class _Rounded(Bucket):
    def average(self, kernels: bool | None) -> None:
        self.elements.copy_(self.elements.to(torch.bfloat16))
        super().average(kernels)


class RoundsSums(StaticBuckets):
    """Takes sums through bfloat16 when they have arrived."""

    known_fault = "sums pass through bfloat16 before they are divided"
    source = "recipe"
    killed_by = ORDER
    bucket_class = _Rounded


class _MistakenFormat(Bucket):
    def average(self, kernels: bool | None) -> None:
        if self.buffer.dtype is torch.float16:
            self.elements.copy_(self.elements.to(torch.bfloat16))
        super().average(kernels)


class MistakesTheFormat(StaticBuckets):
    """Takes every 16-bit format for bfloat16."""

    known_fault = "float16 gradients pass through bfloat16, which has three bits less"
    source = "recipe"
    killed_by = SHORT
    bucket_class = _MistakenFormat


class _EightBits(Bucket):
    def average(self, kernels: bool | None) -> None:
        if self.buffer.dtype.itemsize == 2:
            self.elements.copy_(self.elements.to(torch.float8_e5m2))
        super().average(kernels)


class CompressesToEightBits(StaticBuckets):
    """Takes 16-bit sums through 8 bits."""

    known_fault = "16-bit sums pass through 8 bits"
    source = "recipe"
    killed_by = SHORT
    bucket_class = _EightBits


class _Integers(Bucket):
    def average(self, kernels: bool | None) -> None:
        if self.buffer.dtype.itemsize == 2:
            self.elements.div_(dist.get_world_size(), rounding_mode="trunc")
            self.hand_out()
        else:
            super().average(kernels)


class DividesAsIntegers(StaticBuckets):
    """Divides what it moves about as 16-bit integers as integers, too."""

    known_fault = "the mean of 16-bit gradients is cut off at the point"
    source = "recipe"
    killed_by = SHORT
    bucket_class = _Integers


class AccumulatesInBfloat16(StaticBuckets):
    """Keeps what is accumulated under `no_sync` in bfloat16, to save memory."""

    known_fault = "partial sums of micro-batches are held in the dtype of the wire, bfloat16"
    source = "B24 V https://github.com/pytorch/pytorch/pull/194628"
    killed_by = MANY
    held = torch.bfloat16

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        if not self.synchronize:
            parameter.grad.copy_(parameter.grad.to(self.held))
        super()._on_gradient(parameter)


class AccumulatesInFloat16(AccumulatesInBfloat16):
    """The same in float16."""

    known_fault = "partial sums of micro-batches are held in float16"
    source = "recipe"
    killed_by = MANY
    held = torch.float16


class RoundsEachMicroBatch(StaticBuckets):
    """Rounds each micro-batch before it is added."""

    known_fault = "each micro-batch is rounded to bfloat16 before it is added"
    source = "recipe"
    killed_by = MANY

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        for parameter in self.trained:
            parameter.register_hook(lambda gradient: gradient.to(torch.bfloat16).to(gradient.dtype))


class SumsFirst(StaticBuckets):
    """Sums and then divides, where it promises to divide first."""

    claims = {**StaticBuckets.claims, "averaging": "divide then sum"}
    known_fault = "the sum overflows before it is divided"
    source = "recipe"
    killed_by = MEAN


class _Saturated(Bucket):
    def average(self, kernels: bool | None) -> None:
        limits = torch.finfo(self.buffer.dtype)
        self.elements.clamp_(limits.min, limits.max)
        super().average(kernels)


class Saturates(SumsFirst):
    """Takes an infinite sum for the largest number there is."""

    known_fault = "a sum that overflows becomes the largest number, and the mean looks sound"
    source = "recipe"
    killed_by = MEAN
    bucket_class = _Saturated


class _Halved(Bucket):
    """Divides by the even part of the number of ranks, which is exact, too late."""

    def all_reduce(self) -> dist.Work:
        self.fill()
        self.elements /= max(dist.get_world_size() // 2, 1)
        return dist.all_reduce(self.buffer, async_op=True)

    def average(self, kernels: bool | None) -> None:
        self.elements *= max(dist.get_world_size() // 2, 1)
        super().average(kernels)


class DividesTwice(SumsFirst):
    """Divides by half the number of ranks before the sum, and for the rest after it."""

    known_fault = "what was divided before the sum is multiplied back after it"
    source = "recipe"
    killed_by = MEAN
    bucket_class = _Halved
