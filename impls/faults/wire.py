"""Gradients that pass through another dtype than the one promised: on the wire, or before they get there."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.main_grad_buckets import MainGradBucket, MainGradBuckets
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import Bucket, StaticBuckets
from lockstep.impls.twins.precision import Compressed, CompressesToBFloat16, ReducesInFloat64

CLAIMED = ("test_gradients_are_reduced_in_the_dtype_that_is_claimed",)
MANY = ("test_the_error_does_not_grow_with_the_number_of_micro_batches",)
COMPRESSED = ("test_compressed_gradients_travel_in_the_dtype_that_is_claimed",)


class _CopiedBack(Bucket):
    def all_reduce(self) -> dist.Work:
        self.fill()
        self.buffer.copy_(self.buffer.double())
        return dist.all_reduce(self.buffer, async_op=True)


class CastsInPlace(StaticBuckets):
    """Casts the bucket into itself, which gives it its old dtype back."""

    claims = ReducesInFloat64.claims
    known_fault = "the cast for the wire is copied back into the bucket, and changes nothing"
    source = "J02 V https://github.com/pytorch/pytorch/pull/63375"
    killed_by = CLAIMED
    bucket_class = _CopiedBack


class DecidesWhileFrozen(ReducesInFloat64):
    """Takes the dtype for the wire from what is trained when the module is wrapped."""

    known_fault = "parameters that are trained later are reduced in their own dtype"
    source = "J04 V https://github.com/pytorch/pytorch/issues/186998"
    killed_by = CLAIMED

    def _assign(self, trained: list[nn.Parameter]) -> None:
        if not hasattr(self, "_known"):
            self._known = set(trained)
        super()._assign(trained)
        for number, bucket in enumerate(self._buckets):
            if not self._known >= set(bucket.views):
                self._buckets[number] = Bucket(list(bucket.views))
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.views}


class _SentInSixteen(MainGradBucket):
    def all_reduce(self) -> dist.Work:
        for parameter in self.main_grads:
            self.take(parameter)
        self.flags.copy_(torch.tensor([parameter in self.filled for parameter in self.main_grads]))
        self.sent = self.buffer.to(next(iter(self.main_grads)).dtype)
        return dist.all_reduce(self.sent, async_op=True)

    def hand_out(self) -> None:
        self.buffer.copy_(self.sent)
        super().hand_out()


class SendsSixteenBits(MainGradBuckets):
    """Accumulates in float32, and casts to the parameters' dtype to save half of the traffic."""

    known_fault = "float32 main gradients are reduced in the parameters' 16 bits"
    source = "recipe"
    killed_by = CLAIMED

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        for bucket in self._buckets:
            bucket.__class__ = _SentInSixteen


class _CompressedInPlace(Compressed):
    def cast(self) -> torch.Tensor:
        return self.buffer.copy_(super().cast())


class CompressesInPlace(CompressesToBFloat16):
    """Casts to bfloat16, and copies that into the bucket, which has its own dtype."""

    known_fault = "the compressed bucket is copied back, and travels as wide as it was"
    source = "J02 V https://github.com/pytorch/pytorch/pull/63375"
    killed_by = COMPRESSED
    bucket_class = _CompressedInPlace


class _InHalf(Compressed):
    def cast(self) -> torch.Tensor:
        return self.buffer.half()


class CompressesToFloat16(CompressesToBFloat16):
    """Has a default of its own for the wire."""

    known_fault = "gradients travel in float16 where bfloat16 is asked for, and overflow beyond 65504"
    source = "J05 V https://github.com/deepspeedai/DeepSpeed/issues/2071"
    killed_by = COMPRESSED
    bucket_class = _InHalf


class _AsItIs(Compressed):
    def cast(self) -> torch.Tensor:
        return super().cast() if self.buffer.dtype == torch.bfloat16 else self.buffer.clone()


class CompressesWhatIsCompressed(CompressesToBFloat16):
    """Casts a bucket if its dtype is the one to cast to."""

    known_fault = "the condition is the wrong way round: only what has the dtype of the wire is cast to it"
    source = "J06 V https://github.com/deepspeedai/DeepSpeed/pull/4540"
    killed_by = COMPRESSED
    bucket_class = _AsItIs


class _DividedOnTheWay(Compressed):
    def cast(self) -> torch.Tensor:
        sent = super().cast()
        sent[: len(self.elements)] /= dist.get_world_size(self.group)
        return sent


class CompressesAndDivides(CompressesToBFloat16):
    """Divides what it has cast, as hooks that compress do, and divides the sum like any other."""

    known_fault = "the compressed gradient is divided by the number of ranks, and its sum once more"
    source = "recipe"
    killed_by = ("test_gradients_equal_the_mean_over_ranks",)
    bucket_class = _DividedOnTheWay


class AccumulatesCompressed(CompressesToBFloat16):
    """Keeps what accumulates under `no_sync` as it is to be sent."""

    known_fault = "micro-batches are added up in the dtype of the wire, in which only their sum is sent"
    source = "B24 V https://github.com/pytorch/pytorch/pull/194628"
    killed_by = MANY

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        if not self.synchronize:
            parameter.grad.copy_(parameter.grad.bfloat16())
        super()._on_gradient(parameter)


class RoundsBeforehand(NaiveAccumulation):
    """Casts to float32 and back, and sends the dtype it was given."""

    known_fault = "a float64 gradient passes through float32 on its way to a collective in float64"
    source = "recipe"
    killed_by = ("test_gradients_equal_the_mean_over_ranks",)

    def finish_gradient_synchronization(self) -> None:
        """Right for float32 and narrower."""
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad.copy_(parameter.grad.float())
        super().finish_gradient_synchronization()
