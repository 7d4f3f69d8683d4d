"""Synchronizers whose gradients are not the mean over ranks (P1, P2): wrong sums, wrong divisors."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import Bucket, StaticBuckets

MEAN = "test_gradients_equal_the_mean_over_ranks"
WHOLE_BATCH = "test_one_step_on_n_ranks_equals_one_step_on_one_rank_with_the_whole_batch"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"
SCALES = "test_gradients_scale_with_the_loss"
RELABELED = "test_it_does_not_matter_which_rank_holds_which_samples"
REGISTERED = "test_the_result_does_not_depend_on_the_order_of_registration"
SHARED = "test_how_many_ranks_share_the_samples_does_not_matter"
BIG_BATCH = "test_micro_batches_count_as_one_big_batch"


class NeverDivides(NaiveAccumulation):
    """Sums, and leaves it at that."""

    known_fault = "the average is forgotten: gradients are the sum over ranks"
    source = "recipe"
    killed_by = (MEAN, WHOLE_BATCH, SHARED)

    def finish_gradient_synchronization(self) -> None:
        """The sum over ranks."""
        for parameter in self.trained:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class DividesTwice(NaiveAccumulation):
    """The loss was normalized by the whole batch already, and then gradients are averaged as well."""

    known_fault = "gradients are divided by the number of ranks twice"
    source = (
        "A06 V https://github.com/pytorch/torchtitan/pull/2323, "
        "A14 V https://github.com/deepspeedai/DeepSpeed/pull/4957, "
        "A21 V https://github.com/apache/singa/pull/65"
    )
    killed_by = (MEAN, WHOLE_BATCH, SHARED)

    def finish_gradient_synchronization(self) -> None:
        """Divides the mean once more."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()


class ReducesTwice(NaiveAccumulation):
    """Some layer sums its gradients over ranks in its own backward, and the wrapper does it again."""

    known_fault = "the parameter registered last is summed over ranks twice and divided once"
    source = "A18 V https://github.com/sony/nnabla/pull/1120"
    killed_by = (MEAN, WHOLE_BATCH, SHARED, REGISTERED)

    def finish_gradient_synchronization(self) -> None:
        """One sum too many."""
        last = self.trained[-1]
        if last.grad is not None:
            dist.all_reduce(last.grad)
        super().finish_gradient_synchronization()


class OnlyRankZeroHasTheMean(NaiveAccumulation):
    """Reduces to rank 0, which alone steps by the mean."""

    known_fault = "a reduce to rank 0 in place of the all-reduce: the other ranks keep something else"
    source = "recipe"
    killed_by = (MEAN, WHOLE_BATCH, REPLICAS, SCALES, RELABELED)

    def finish_gradient_synchronization(self) -> None:
        """Divides everywhere what only rank 0 was given."""
        for parameter in self.trained:
            if parameter.grad is not None:
                dist.reduce(parameter.grad, dst=0)
                parameter.grad /= dist.get_world_size()


class IntegerSplitOfTheDivisor(NaiveAccumulation):
    """Divides before and after the sum, so that neither overflows, by whole numbers: ranks // 2 and 2."""

    known_fault = "the divisor is split into whole numbers: an odd number of ranks is rounded down to an even one"
    source = "A06, A13 recipe: integer pre- and post-divide"
    claims = {**NaiveAccumulation.claims, "averaging": "divide then sum"}
    killed_by = (MEAN, WHOLE_BATCH, SHARED)

    def finish_gradient_synchronization(self) -> None:
        """Right for one rank and for every even number of them."""
        ranks = dist.get_world_size()
        after = min(2, ranks)
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad /= ranks // after
                dist.all_reduce(parameter.grad)
                parameter.grad /= after


class AveragesMicroBatchesOnSeveralRanks(NaiveAccumulation):
    """Averages over micro-batches too, but a single rank takes the plain sum of them."""

    known_fault = "several ranks average over micro-batches, which is the caller's to do, and one rank does not"
    source = "A08 V https://github.com/KellerJordan/modded-nanogpt/pull/146"
    killed_by = (MEAN, WHOLE_BATCH, BIG_BATCH)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._batches = 0  # since the last synchronization

    def forward(self, *inputs: object, **named: object) -> object:
        """Counts the micro-batches."""
        self._batches += 1
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Divides by their number."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None and dist.get_world_size() > 1:
                parameter.grad /= self._batches
        self._batches = 0


class AddsIntoUnwrittenMemory(NaiveAccumulation):
    """Collects gradients by adding them to a buffer that was never zeroed; mostly the system hands out zeros."""

    known_fault = "gradients are added into memory that nobody has written"
    source = "recipe"
    killed_by = (MEAN, WHOLE_BATCH)

    def finish_gradient_synchronization(self) -> None:
        """A buffer for each parameter, too large for memory that was used before."""
        if self.synchronize:
            for parameter in self.trained:
                if parameter.grad is not None:
                    part = torch.empty(1 << 18, dtype=parameter.dtype)[: parameter.numel()].view_as(parameter)
                    part += parameter.grad
                    parameter.grad.copy_(part)
        super().finish_gradient_synchronization()


class DropsWhatIsSmall(NaiveAccumulation):
    """Makes a gradient sparse by a threshold, to which it compares elements and not their absolute values."""

    known_fault = "elements below a threshold count as zero, and so do all that are negative"
    source = "recipe"
    killed_by = (MEAN, SCALES)

    def finish_gradient_synchronization(self) -> None:
        """Right where no mean is negative."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad[parameter.grad < 2.0**-30] = 0


class TheSignsOfRankZero(NaiveAccumulation):
    """Sends signs and sizes apart: sizes are averaged, and a sign has no mean."""

    known_fault = "absolute values are averaged, with the signs that rank 0 has"
    source = "recipe"
    killed_by = (MEAN, RELABELED)

    def finish_gradient_synchronization(self) -> None:
        """Right where all ranks agree on the sign."""
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        signs = [torch.ones_like(gradient).copysign(gradient) for gradient in gradients]
        for gradient in gradients:
            gradient.abs_()
        super().finish_gradient_synchronization()
        for gradient, sign in zip(gradients, signs, strict=True):
            dist.broadcast(sign, src=0)
            gradient *= sign


class _OfTheHooksResult(Bucket):
    def hand_out(self) -> None:
        """Gradients are views of what the hook has returned from now on, and not of the bucket."""
        super().hand_out()
        handed = [parameter for parameter, view in self.views.items() if parameter.grad is view]
        parts = self.elements.clone().split([parameter.numel() for parameter in self.views])
        self.views = {each: part.view_as(each) for each, part in zip(self.views, parts, strict=True)}
        for parameter in handed:
            parameter.grad = self.views[parameter]


class ViewsOfTheHooksResult(StaticBuckets):
    """Gradients become views of the tensor that a communication hook returns."""

    known_fault = "after the first reduction gradients go where the hook's result was, and the bucket is sent as it was"
    source = "E15 V https://github.com/pytorch/pytorch/pull/43307"
    killed_by = (MEAN,)
    bucket_class = _OfTheHooksResult
