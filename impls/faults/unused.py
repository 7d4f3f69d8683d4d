"""Synchronizers that go wrong where a parameter takes no part in a backward (P5, P6)."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation, NaiveDataParallel
from lockstep.impls.static_buckets import Bucket, StaticBuckets

MEAN = "test_gradients_equal_the_mean_over_ranks"
BY_NOBODY = "test_a_parameter_that_no_rank_used_gets_what_is_claimed"
BY_SOME = "test_a_parameter_that_some_ranks_used_gets_the_mean_on_all"
FROZEN = "test_a_parameter_that_nobody_uses_is_as_good_as_frozen"
INSIDE = "test_what_was_used_only_inside_no_sync_is_synchronized"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"
SCALES = "test_gradients_scale_with_the_loss"
RELABELED = "test_it_does_not_matter_which_rank_holds_which_samples"
SAME_COLLECTIVES = "test_every_rank_issues_the_same_collectives"
IDLE = "test_a_rank_that_uses_no_parameter_gets_the_mean_like_the_others"
NOBODY_WAITS = "test_no_rank_waits_for_ever_where_ranks_use_different_parameters"


class ZerosForUnused(StaticBuckets):
    """Hands out every part of a bucket, whether or not some rank had a gradient."""

    known_fault = "a parameter that no rank used gets a gradient of zeros: weight decay and momentum move it"
    source = "C01 V https://github.com/pytorch/pytorch/issues/28294"
    killed_by = (MEAN, BY_NOBODY, FROZEN)

    def finish_gradient_synchronization(self) -> None:
        """Zeros for what is missing."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class LeavesIncompleteBuckets(StaticBuckets):
    """Sends a bucket when all of its members are ready, and never otherwise."""

    known_fault = "a bucket with an unused member is never sent: its other members keep local gradients"
    source = "C02 D https://github.com/pytorch/pytorch/issues/128949"
    killed_by = (MEAN, BY_NOBODY, FROZEN)

    def finish_gradient_synchronization(self) -> None:
        """Waits for the buckets that were sent; says nothing of the others."""
        self._buckets, everything = self._buckets[: len(self._in_flight)], self._buckets
        super().finish_gradient_synchronization()
        self._buckets = everything


class UnsentBucketIsAnError(StaticBuckets):
    """Takes it for granted that hooks have sent every bucket before backward is over."""

    known_fault = "a bucket with an unused member ends training with an internal error"
    source = "C04 V https://github.com/NVIDIA/Megatron-LM/issues/1150"
    killed_by = (MEAN, BY_NOBODY, FROZEN)

    def finish_gradient_synchronization(self) -> None:
        """Raises in the middle of training, where it had said that parameters may go unused."""
        if len(self._in_flight) < len(self._buckets):
            raise RuntimeError("communication call has not been issued for this bucket")
        super().finish_gradient_synchronization()


class LocallyUnusedGetsNothing(StaticBuckets):
    """Hands a mean only to parameters that this rank has used itself."""

    known_fault = "a rank that did not use a parameter does not get the mean of those that did"
    source = "C10 V https://github.com/pytorch/pytorch/issues/158719"
    killed_by = (MEAN, BY_SOME, INSIDE, REPLICAS, SCALES, RELABELED)

    def finish_gradient_synchronization(self) -> None:
        """Takes away again what was not there before."""
        missing = [parameter for parameter in self.trained if parameter.grad is None]
        super().finish_gradient_synchronization()
        for parameter in missing:
            parameter.grad = None


class DividesByContributors(StaticBuckets):
    """Averages over the ranks that have a gradient."""

    known_fault = "a parameter that some ranks did not use is divided by the number of those that did"
    source = "recipe"
    killed_by = (MEAN, BY_SOME, INSIDE)

    def finish_gradient_synchronization(self) -> None:
        """Undoes the division by all ranks."""
        super().finish_gradient_synchronization()
        for bucket in self._buckets:
            for (parameter, _), ranks in zip(bucket.views.items(), bucket.flags.tolist(), strict=True):
                if ranks and parameter.grad is not None:
                    parameter.grad = parameter.grad * dist.get_world_size() / ranks


class _StaysHome(Bucket):
    """Is sent only if there is something in it."""

    def all_reduce(self) -> Any:
        if self.elements.numel():
            return super().all_reduce()
        self.fill()
        return SimpleNamespace(wait=lambda: None)


class EmptyBucketsStayHome(StaticBuckets):
    """Spares the all-reduce of a bucket without elements; its flags do not go out either."""

    known_fault = "a parameter without elements that some ranks did not use keeps None there"
    source = "recipe"
    killed_by = (MEAN,)
    bucket_class = _StaysHome


class SkipsMissingGradients(NaiveAccumulation):
    """The loop that everybody writes: ``if parameter.grad is not None``."""

    known_fault = "a rank that did not use a parameter leaves out its all-reduce, and the calls no longer pair up"
    source = "C07 V https://github.com/KellerJordan/Muon/issues/37"
    claims = {**NaiveAccumulation.claims, "unused": "untouched"}
    killed_by = (SAME_COLLECTIVES, NOBODY_WAITS)


class PacksWhatIsThere(NaiveAccumulation):
    """One flat all-reduce of the gradients that there are."""

    known_fault = "gradients that are None are left out of the flat buffer, whose size then differs between ranks"
    source = "C06 V https://github.com/deepspeedai/DeepSpeed/pull/291"
    claims = {**NaiveAccumulation.claims, "several_dtypes": False, "unused": "untouched"}
    killed_by = (SAME_COLLECTIVES, NOBODY_WAITS)

    def finish_gradient_synchronization(self) -> None:
        """Right where the same gradients are there on all ranks."""
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


class OnlyHooksSend(NaiveAccumulation):
    """Launches the all-reduce of a parameter from its hook alone; finishing waits for those that were launched."""

    known_fault = "a parameter whose hook does not fire on a rank is not sent there"
    source = "C09 V https://github.com/horovod/horovod/pull/597"
    claims = {**NaiveAccumulation.claims, "replaced_parameters": False, "hook_order": False, "unused": "untouched"}
    killed_by = (SAME_COLLECTIVES, NOBODY_WAITS)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._in_flight: list[tuple[dist.Work, nn.Parameter]] = []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter: nn.Parameter) -> None:
        if self.synchronize and parameter.grad is not None:
            self._in_flight.append((dist.all_reduce(parameter.grad, async_op=True), parameter))

    def finish_gradient_synchronization(self) -> None:
        """Divides what was sent."""
        for work, parameter in self._in_flight:
            work.wait()
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()
        self._in_flight.clear()


class _Stale(Bucket):
    """Sends what an earlier synchronization left where a member has no gradient."""

    def all_reduce(self) -> dist.Work:
        for parameter in self.views:
            if parameter.grad is not None:
                self.adopt(parameter)
        self.flags.copy_(torch.tensor([parameter.grad is not None for parameter in self.views]))
        return dist.all_reduce(self.buffer, async_op=True)


class UnusedSendsWhatWasThere(StaticBuckets):
    """Does not clear a bucket's part whose parameter took no part this time."""

    known_fault = "an unused parameter contributes what is left in its bucket from the step before"
    source = "recipe: stale or uninitialized memory in place of zeros"
    killed_by = (MEAN, BY_SOME)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        super()._assign(trained)
        for bucket in self._buckets:
            bucket.__class__ = _Stale


class SkipsZeros(NaiveDataParallel):
    """Takes a gradient of zeros for none."""

    known_fault = "a gradient that is zero on a rank is not reduced there"
    source = "recipe"
    killed_by = (SAME_COLLECTIVES,)

    def finish_gradient_synchronization(self) -> None:
        """Reduces what it thinks there is."""
        for parameter in self.trained:
            if parameter.grad is not None and bool(parameter.grad.any()):
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


class TheSameAreUsedForEver(StaticBuckets):
    """Takes the parameters that had gradients in the first window for all that ever will."""

    known_fault = "a parameter that the first window did not use cannot be used in a later one"
    source = "C13 D https://github.com/deepspeedai/DeepSpeed/issues/1355"
    killed_by = (MEAN, BY_SOME)
    _used: set[nn.Parameter] | None = None

    def finish_gradient_synchronization(self) -> None:
        """Raises where there is another."""
        super().finish_gradient_synchronization()
        used = {parameter for parameter in self.trained if parameter.grad is not None}
        self._used = used if self._used is None else self._used
        if not used <= self._used:
            raise KeyError("a gradient of a parameter that is in no bucket")


class NoHookNothingToSend(StaticBuckets):
    """Has nothing to finish where no hook has fired since forward."""

    known_fault = "a rank that used no parameter sends nothing, and the others wait for it"
    source = "C17 D https://github.com/pytorch/pytorch/issues/23425"
    killed_by = (IDLE, NOBODY_WAITS)
    _fired = False

    def prepare(self) -> None:
        """Nothing has fired yet."""
        super().prepare()
        self._fired = False

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._fired = True
        super()._on_gradient(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Begins with what hooks have begun."""
        if self._fired:
            super().finish_gradient_synchronization()


class IdleRanksKeepTheirs(StaticBuckets):
    """Takes part for the sake of the others where this rank has no gradient at all, and leaves the means to them."""

    known_fault = "a rank without any gradient does not get the means of the others"
    source = "recipe"
    killed_by = (IDLE, MEAN)

    def finish_gradient_synchronization(self) -> None:
        """Drops what has come."""
        idle = all(parameter.grad is None for parameter in self.trained)
        super().finish_gradient_synchronization()
        for parameter in self.trained if idle else ():
            parameter.grad = None


class MeanOfThoseAtWork(StaticBuckets):
    """Divides by the number of ranks that have some gradient."""

    known_fault = "a rank that used no parameter does not count in the mean"
    source = "recipe"
    killed_by = (IDLE,)

    def finish_gradient_synchronization(self) -> None:
        """Undoes the division by all ranks."""
        ranks = torch.tensor([float(any(parameter.grad is not None for parameter in self.trained))])
        dist.all_reduce(ranks)
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None and ranks:
                parameter.grad = parameter.grad * dist.get_world_size() / ranks.item()
