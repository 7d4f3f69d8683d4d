"""Right values that cost more than they need to, one known fault each."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets, assign_buckets
from lockstep.impls.twins.cost import RebuildsItsBuckets
from lockstep.impls.twins.sharding import ByAllReduce
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import UnitCall, Zero3

LOCAL = "test_nothing_is_reduced_inside_no_sync"
MARGIN = "test_an_element_more_costs_what_the_stage_promises"
TOGETHER = "test_what_fits_into_one_bucket_goes_out_at_once"
CAP = "test_no_bucket_exceeds_its_cap_by_more_than_a_parameter"
OVERLAP = "test_reductions_overlap_with_backward"


class ReducesInsideNoSync(StaticBuckets):
    """An inner wrapper that has not heard of the outer's `no_sync`."""

    claims = {**StaticBuckets.claims, "hook_order": False, "unused": None}
    known_fault = "gradients are reduced inside no_sync too, and the result thrown away"
    source = "B16 V https://github.com/meta-pytorch/torchrec/pull/4121"
    killed_by = (LOCAL, MARGIN)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        super()._on_gradient(parameter)
        if not self.synchronize:
            dist.all_reduce(parameter.grad.clone())


class TakesTheCapInKilobytes(StaticBuckets):
    """Of right units in the default alone."""

    known_fault = "buckets are a thousandth of what the cap says, and a message goes out for each parameter"
    source = "recipe: megabytes taken for kilobytes"
    killed_by = (TOGETHER,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0 * 1024) -> None:
        super().__init__(module, bucket_cap_mb / 1024)


class BroadcastsInsideNoSync(StaticBuckets):
    """Rank 0's buffers go out in every micro-batch."""

    known_fault = "buffers are broadcast in every micro-batch, inside no_sync too"
    source = "B26 V https://github.com/facebookresearch/fairscale/pull/1049"
    killed_by = (LOCAL,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not self.synchronize:
            for buffer in self.module.buffers():
                dist.broadcast(buffer.clone(), src=0)
        return super().forward(*inputs, **named)


class MeetsInsideNoSync(StaticBuckets):
    """Ranks wait for each other in every micro-batch."""

    known_fault = "a barrier in every micro-batch, inside no_sync too"
    source = "recipe"
    killed_by = (LOCAL,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not self.synchronize:
            dist.barrier()
        return super().forward(*inputs, **named)


class ReducesTwice(StaticBuckets):
    """Two parts of a program each see to the synchronization."""

    known_fault = "every bucket is all-reduced twice"
    source = "G20 V https://github.com/horovod/horovod/issues/1099"
    killed_by = (MARGIN,)

    def finish_gradient_synchronization(self) -> None:
        """Ends a synchronization."""
        begun = self._begun
        super().finish_gradient_synchronization()
        if begun:
            for bucket in self._buckets:
                dist.all_reduce(bucket.buffer.clone())


class SendsInDouble(NaiveAccumulation):
    """Adds up in float64, for the sake of a better sum, and does not say so."""

    known_fault = "gradients in float32 travel in float64, at twice the bytes"
    source = "recipe: a cast for the sum that nobody asked for"
    claims = {**NaiveAccumulation.claims, "cost": True}
    killed_by = (MARGIN,)

    def finish_gradient_synchronization(self) -> None:
        """The mean over ranks, rounded once."""
        for parameter in self.trained if self.synchronize else ():
            if parameter.grad is not None:
                wide = parameter.grad.double()
                dist.all_reduce(wide)
                parameter.grad.copy_(wide / dist.get_world_size())


class OneParameterInEachBucket(StaticBuckets):
    """A bucket counts as full from the start."""

    known_fault = "every bucket holds one parameter, whatever the cap"
    source = "F03 V https://github.com/deepspeedai/DeepSpeed/issues/7415"
    killed_by = (TOGETHER,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, min(bucket_cap_mb, 0.0))


class TakesTheCapForBytes(StaticBuckets):
    """25, of mebibytes, are 25 bytes."""

    known_fault = "the cap, given in MiB, is read as bytes"
    source = "recipe"
    killed_by = (TOGETHER,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb / 2**20)


class TakesACapAndHasNoBuckets(NaiveAccumulation):
    """One message for each parameter."""

    claims = {**NaiveAccumulation.claims, "bucket_cap": True}
    known_fault = "every parameter is a message of its own, whatever the cap"
    source = "recipe"
    killed_by = (TOGETHER,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module)


class IgnoresTheCap(StaticBuckets):
    """Everything goes out in one bucket."""

    known_fault = "the bucket cap is not honored"
    source = "F23 V https://github.com/pytorch/pytorch/issues/48880"
    killed_by = (CAP, OVERLAP)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, max(bucket_cap_mb, float("inf")))


class LearnsWithoutACap(RebuildsItsBuckets):
    """While the order is learned there is one bucket."""

    claims = {**RebuildsItsBuckets.claims, "cap_from": "first step"}
    known_fault = "in the first steps the bucket cap is not honored"
    source = "F23 V https://github.com/pytorch/pytorch/issues/48880"
    killed_by = (CAP,)


class CapOfTheFirstBucketOnly(StaticBuckets):
    """Closes one bucket; whatever is left goes into a second."""

    known_fault = "after the first bucket the cap is forgotten"
    source = "recipe"
    killed_by = (CAP,)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        super()._assign(trained)
        first, *others = (list(bucket.views) for bucket in self._buckets)
        rest = [parameter for members in others for parameter in members]
        self._buckets = [self.bucket_class(members) for members in (first, rest) if members]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.views}


class CountsParametersNotBytes(StaticBuckets):
    """So many parameters to a bucket as bytes are allowed."""

    known_fault = "the cap counts parameters"
    source = "recipe"
    killed_by = (CAP,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        largest = max((parameter.nbytes for parameter in module.parameters()), default=0)
        super().__init__(module, bucket_cap_mb * max(largest, 1))


class WaitsForTheLastBucket(StaticBuckets):
    """Lets nothing be written to a bucket while another is on its way."""

    known_fault = "backward waits for each reduction before it goes on, so that none overlaps with another"
    source = "E17 V https://github.com/deepspeedai/DeepSpeed/issues/8364"
    killed_by = (OVERLAP,)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self._in_flight:
            self._in_flight[-1].wait()
        super()._on_gradient(parameter)


class LaunchesWhenBackwardIsOver(StaticBuckets):
    """Sees to all buckets in one place."""

    known_fault = "no bucket is launched before backward is over, where overlap is claimed"
    source = "recipe: hooks that only fill buckets"
    killed_by = (OVERLAP,)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._bucket_of[parameter].adopt(parameter)


class GathersOnceMore(Zero3):
    """A unit that backward has left is gathered once more, for nobody."""

    known_fault = "parameters are gathered three times in a step"
    source = "recipe"
    killed_by = (MARGIN,)

    @torch.no_grad()
    def _end(self, call: UnitCall) -> None:
        super()._end(call)
        for flat in call.flats:
            flat.all_gather(self._shards, flat.members[0].dtype)


class AllReducesWhereItScatters(Zero1):
    """Every rank gets the whole sum, and takes its slice of it."""

    cut = ByAllReduce
    known_fault = "gradients are all-reduced, where a reduce-scatter is claimed"
    source = "recipe"
    killed_by = (MARGIN,)


class GathersAgain(Zero3):
    """Frees parameters after forward."""

    claims = {**Zero3.claims, "schedule": "gather once", "exact_memory": False, "sharded_by": None}
    known_fault = "parameters are gathered again for backward, where they are to stay"
    source = "recipe"
    killed_by = (MARGIN,)


class SendsWhatIsFrozen(NaiveAccumulation):
    """Sends a message for each parameter, trained or not."""

    known_fault = "zeros travel for parameters that are frozen, though these are most of a model that is tuned"
    source = "recipe: a buffer for all parameters"
    killed_by = (MARGIN,)

    def finish_gradient_synchronization(self) -> None:
        if self.synchronize:
            for parameter in self.module.parameters():
                if not parameter.requires_grad:
                    dist.all_reduce(torch.zeros_like(parameter))
        super().finish_gradient_synchronization()


class OneBucketForEachModule(StaticBuckets):
    """Wraps each submodule by itself."""

    known_fault = "a bucket never holds parameters of two modules, however small they are"
    source = "recipe: a synchronizer in each layer"
    killed_by = (TOGETHER,)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        super()._assign(trained)
        home = {parameter: each for each in self.module.modules() for parameter in each.parameters(recurse=False)}
        of_module: dict[nn.Module, list[nn.Parameter]] = {}
        for parameter in trained[::-1]:
            of_module.setdefault(home[parameter], []).append(parameter)
        members = [bucket for each in of_module.values() for bucket in assign_buckets(each, self._cap)]
        self._buckets = [self.bucket_class(each) for each in members]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.views}


class NewBucketsKnowNoCap(StaticBuckets):
    """Buckets are made in two places: when the model is wrapped, and when other parameters are trained."""

    known_fault = "once a parameter is frozen or replaced, the cap is forgotten"
    source = "recipe"
    killed_by = (CAP,)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        if self._hooked:
            self._cap = float("inf")
        super()._assign(trained)


class NewParametersHaveNoHooks(StaticBuckets):
    """A parameter that takes another's place is sent when backward is over."""

    known_fault = "once parameters are replaced, no bucket that holds one goes out before backward is over"
    source = "recipe: hooks that are bound to tensors"
    killed_by = (OVERLAP,)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        if self._hooked:
            self._hooked |= set(trained)
        super()._assign(trained)


class WaitsForTheOtherDtype(StaticBuckets):
    """Lets no two dtypes be on their way."""

    known_fault = "a bucket waits for the one before where that has another dtype"
    source = "recipe: a buffer that is cast in place"
    killed_by = (OVERLAP,)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        sent = len(self._in_flight)
        if sent and self._buckets[sent - 1].buffer.dtype != parameter.dtype:
            self._in_flight[-1].wait()
        super()._on_gradient(parameter)


class SendsAtEachFifth(NaiveAccumulation):
    """Lets no window grow too long."""

    known_fault = "inside no_sync, each fifth micro-batch sends a message"
    source = "recipe: a flush after so many micro-batches"
    killed_by = (LOCAL,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._local = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._local = 0 if self.synchronize else self._local + 1
        if self._local == 5:
            dist.all_reduce(torch.zeros(1))
        return super().forward(*inputs, **named)


class GathersGradientsForTheirNorm(Zero2):
    """Takes the norm of gradients that are whole."""

    known_fault = "every rank gathers all gradients to take their norm"
    source = "recipe: full_tensor() before a norm"
    killed_by = (MARGIN,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        self.full_gradients()
        return super().clip_grad_norm_(max_norm, norm_type)


class GathersAllToEvaluate(Zero3):
    """Gathers the whole model before an evaluation, whose units then gather once more."""

    known_fault = "an evaluation gathers every parameter twice, and holds all of them"
    source = "recipe: summon_full_params around an evaluation"
    killed_by = (MARGIN,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        whole = {} if torch.is_grad_enabled() else self.full_parameters()
        try:
            return super().forward(*inputs, **named)
        finally:
            whole.clear()
