"""Synchronizers whose result depends on what must not matter: bucket caps, sizes, dtypes, strides (P8)."""

import math

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.average import average_
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets

MEAN = "test_gradients_equal_the_mean_over_ranks"
CAP = "test_the_result_does_not_depend_on_the_bucket_cap"
REGISTERED = "test_the_result_does_not_depend_on_the_order_of_registration"
SAVED = "test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted"


class _Flushes(NaiveAccumulation):
    """After backward, fills a flat buffer with gradients in registration order, and sends it when it is full."""

    claims = {**NaiveAccumulation.claims, "several_dtypes": False}

    def __init__(self, module: nn.Module, bucket_cap_bytes: float = 25 * 2**20) -> None:
        super().__init__(module)
        self.cap = bucket_cap_bytes

    def send(self, bucket: list[torch.Tensor]) -> None:
        """Replaces the gradients of a bucket by their means."""
        flat = bucket[0].new_empty(sum(gradient.numel() for gradient in bucket))
        torch.cat([gradient.flatten() for gradient in bucket], out=flat)
        dist.all_reduce(flat)
        average_(flat, dist.get_world_size())
        for gradient, mean in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            gradient.copy_(mean.view_as(gradient))


class ForgetsTheExactFit(_Flushes):
    """Below the cap a gradient joins the bucket, above it is sent alone."""

    known_fault = "a gradient just as large as the cap is never reduced"
    source = "F01 V https://github.com/deepspeedai/DeepSpeed/pull/4321"
    killed_by = (MEAN, CAP)

    def finish_gradient_synchronization(self) -> None:
        """Of < and >, neither holds."""
        bucket: list[torch.Tensor] = []
        for gradient in (parameter.grad for parameter in self.trained if parameter.grad is not None):
            if gradient.nbytes > self.cap:
                self.send([gradient])
            elif gradient.nbytes < self.cap:
                if sum(each.nbytes for each in bucket) + gradient.nbytes > self.cap:
                    self.send(bucket)
                    bucket = []
                bucket.append(gradient)
        if bucket:
            self.send(bucket)


class FlushesAnEmptyBucket(_Flushes):
    """Flushes before a gradient that does not fit, also where nothing was put in yet."""

    known_fault = "a first gradient larger than the cap flushes an empty bucket"
    source = "F04 V https://github.com/deepspeedai/DeepSpeed/pull/1214"
    killed_by = (MEAN, CAP, REGISTERED)

    def finish_gradient_synchronization(self) -> None:
        """An empty bucket has no first member."""
        bucket: list[torch.Tensor] = []
        for gradient in (parameter.grad for parameter in self.trained if parameter.grad is not None):
            if sum(each.nbytes for each in bucket) + gradient.nbytes > self.cap:
                self.send(bucket)
                bucket = []
            bucket.append(gradient)
        if bucket:
            self.send(bucket)


class LeavesTheLastBucket(_Flushes):
    """Flushes when a bucket is full, and nobody flushes the last one but the only one."""

    known_fault = "the last, partly filled of several buckets is never reduced"
    source = "F07 D https://github.com/facebookresearch/fairscale/issues/517"
    killed_by = (MEAN, CAP, REGISTERED)

    def finish_gradient_synchronization(self) -> None:
        """Right with a single bucket."""
        bucket: list[torch.Tensor] = []
        sent = False
        for gradient in (parameter.grad for parameter in self.trained if parameter.grad is not None):
            if bucket and sum(each.nbytes for each in bucket) + gradient.nbytes > self.cap:
                self.send(bucket)
                bucket, sent = [], True
            bucket.append(gradient)
        if bucket and not sent:
            self.send(bucket)


class FirstDtypeForAll(NaiveAccumulation):
    """One flat buffer in the dtype of the first gradient."""

    known_fault = "all gradients travel in the dtype of the first"
    source = "F08 D https://github.com/facebookresearch/fairscale/pull/583"
    killed_by = (MEAN, "test_gradients_travel_in_their_own_dtype_or_a_wider_one")

    def finish_gradient_synchronization(self) -> None:
        """Right where all have one dtype."""
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        flat = torch.cat([gradient.flatten().to(gradients[0].dtype) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


class ThrowsAwayTheReducedCopy(NaiveAccumulation):
    """``all_reduce(gradient.contiguous())``, and goes on with the gradient."""

    known_fault = "the reduced copy of a gradient that is not contiguous is thrown away"
    source = "K01 V https://github.com/NVIDIA/Megatron-LM/issues/5337"
    claims = {**NaiveAccumulation.claims, "strided_parameters": True}
    killed_by = (MEAN,)

    def finish_gradient_synchronization(self) -> None:
        """Right for contiguous gradients."""
        for parameter in self.trained:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad.contiguous())
                parameter.grad /= dist.get_world_size()


class PacksByMemory(NaiveAccumulation):
    """Packs gradients as they lie in memory and unpacks them row by row."""

    known_fault = "gradients are packed in the order of memory and unpacked in that of indices"
    source = "F15 V https://github.com/pytorch/pytorch/pull/34904"
    claims = {**NaiveAccumulation.claims, "strided_parameters": True}
    killed_by = (MEAN,)

    def finish_gradient_synchronization(self) -> None:
        """Right for contiguous gradients."""
        for parameter in self.trained:
            if parameter.grad is not None:
                flat = parameter.grad.as_strided((parameter.numel(),), (1,)).clone()
                dist.all_reduce(flat)
                flat /= dist.get_world_size()
                parameter.grad.copy_(flat.view_as(parameter))


class DividesByTheCap(StaticBuckets):
    """Reckons beforehand how many buckets there will be."""

    known_fault = "a cap of zero, by which each parameter has a bucket of its own, is divided by"
    source = "F05 V https://github.com/deepspeedai/DeepSpeed/issues/8260"
    killed_by = (MEAN, CAP)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self.about = math.ceil(sum(parameter.nbytes for parameter in module.parameters()) / (bucket_cap_mb * 2**20))
        super().__init__(module, bucket_cap_mb)


class PairsSortedNamesWithOrder(_Flushes):
    """Collects gradients by their names, which it sorts, and puts the means back in the order of registration."""

    known_fault = "gradients are sent in the order of names and come back in that of registration"
    source = "recipe"
    killed_by = (REGISTERED, SAVED)

    def finish_gradient_synchronization(self) -> None:
        """The two orders are one as long as nobody registers b before a."""
        named = {name: each for name, each in self.module.named_parameters() if each.grad is not None}
        gradients = [each.grad for each in named.values() if each.grad is not None]
        flat = torch.cat([gradient.flatten() for _, gradient in sorted(zip(named, gradients, strict=True))])
        dist.all_reduce(flat)
        average_(flat, dist.get_world_size())
        for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
