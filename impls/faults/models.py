"""Faults that show on real models: modules used twice, activations recomputed, buffers, outputs that nobody needs."""

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.shards import Flat
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.twins.models import DividesTheLoss, GathersAndAdds
from lockstep.impls.zero3 import UnitCall, Zero3

MEAN = "test_a_real_model_gets_the_mean_gradient_of_the_whole_batch"
ACCUMULATION = "test_a_real_model_accumulates_under_no_sync_and_each_micro_batch_counts_once"
THROUGH = "test_a_model_hands_back_the_gradient_of_its_own_ranks_loss"
REPLICAS = "test_replicas_of_a_real_model_stay_bitwise_equal"
BUFFERS = "test_buffers_begin_alike_and_follow_the_policy_claimed"
PROBES_BUFFERS = "test_buffers_are_those_of_rank_0_when_it_is_claimed"


class BeginsAnewForAnotherShape(StaticBuckets):
    """Prepares itself for the shape of its inputs, and again whenever there is another."""

    known_fault = "where a micro-batch has another size than the one before it, what has accumulated is lost"
    source = "B14 V https://github.com/NVIDIA-NeMo/Automodel/pull/3530"
    killed_by = (ACCUMULATION,)
    _shape: Any = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Clears up first."""
        (first,) = inputs or named.values()
        if self._shape not in (None, first.shape):
            self.module.zero_grad()
        self._shape = first.shape
        return super().forward(*inputs, **named)


class ForwardOnAThread(NaiveAccumulation):
    """Runs forward on a thread of its own, as who serves several devices does."""

    known_fault = "what a caller's torch.autocast says of its thread does not hold where the module runs"
    source = "recipe: a setting of the caller's thread, on another one"
    claims = {**NaiveAccumulation.claims, "inference_mode": False}
    killed_by = (MEAN,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """With the caller's choice of autograd, and nothing else of that thread's."""
        outputs: list[Any] = []
        forward, enabled = super().forward, torch.is_grad_enabled()

        def run() -> None:
            with torch.set_grad_enabled(enabled):
                outputs.append(forward(*inputs, **named))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return outputs.pop()


class CastsInputsWithoutAutograd(NaiveAccumulation):
    """Brings floating-point inputs to the parameters' dtype, with autograd switched off."""

    known_fault = "inputs get no gradient: they are cast without autograd"
    source = "recipe: a cast of inputs, as in https://github.com/facebookresearch/fairscale/issues/1191"
    killed_by = (THROUGH,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, of copies."""
        inputs, named = tree_map_only(torch.Tensor, torch.Tensor.detach, (inputs, named))
        return super().forward(*inputs, **named)


class AveragesItsInputs(NaiveAccumulation):
    """Averages the gradient of whatever leads into the module, inputs as well."""

    known_fault = "the gradient of the inputs is divided by the number of ranks, like those of parameters"
    source = "recipe: a hook on every leaf that takes a gradient"
    killed_by = (THROUGH,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, of inputs that have hooks."""
        for tensor in (*inputs, *named.values()):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: gradient / dist.get_world_size())
        return super().forward(*inputs, **named)


class DividesTheLossOfAll(DividesTheLoss):
    """Divides what backward begins with by the number of ranks, where inputs have a loss of their own."""

    known_fault = "inputs get a gradient that is smaller by the number of ranks"
    source = "recipe: a loss that is divided in the place of the sum"
    claims = {**DividesTheLoss.claims, "plain_bits": True}
    killed_by = (THROUGH,)


class FirstHookIsTheLast(StaticBuckets):
    """Correct where a parameter's hook fires once in a backward; claims that it may fire more often."""

    claims = {**StaticBuckets.claims, "reentrant_checkpointing": "any"}
    known_fault = "a module used twice under re-entrant checkpointing is sent after the first of its two gradients"
    source = "recipe"
    killed_by = (MEAN,)


class DividesOnceAUse(NaiveAccumulation):
    """Divides by the number of ranks for each use of a module in forward, and sums at the end."""

    known_fault = "the gradients of a module used twice are divided twice"
    source = "recipe"
    killed_by = (MEAN,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._uses: list[nn.Module] = []
        for part in module.modules():
            part.register_forward_hook(self._used)

    def _used(self, part: nn.Module, *_: Any) -> None:
        if self.synchronize:
            self._uses.append(part)

    def finish_gradient_synchronization(self) -> None:
        """Once for each use of the module that has the parameter as its own."""
        divided = [parameter for part in self._uses for parameter in part.parameters(recurse=False)]
        rest = [parameter for parameter in self.trained if not any(parameter is one for one in divided)]
        self._uses.clear()
        for parameter in (*divided, *rest):
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()
        for parameter in self.trained:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class ListsByName(NaiveAccumulation):
    """Divides what is listed by name, where a tied tensor is listed twice."""

    known_fault = "a tensor under two names is divided twice"
    source = "F11 V https://github.com/pytorch/pytorch/pull/51929"
    killed_by = (MEAN,)

    def finish_gradient_synchronization(self) -> None:
        """Divides by name, sums by tensor."""
        for _, parameter in self.module.named_parameters(remove_duplicate=False):
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()
        for parameter in self.trained:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class WaitsForUnused(StaticBuckets):
    """A bucket that has a member which took no part never goes out."""

    known_fault = "beside a parameter that no rank used, the others of its bucket keep their rank's own gradients"
    source = "C02 D https://github.com/pytorch/pytorch/issues/128949"
    killed_by = (MEAN, REPLICAS)

    def finish_gradient_synchronization(self) -> None:
        """Waits for the buckets that went out by themselves."""
        for work, bucket in zip(self._in_flight, self._buckets, strict=False):
            work.wait()
            bucket.average(self._kernels)
        self._in_flight.clear()


class LastMicrobatchAlone(NaiveAccumulation):
    """Every synchronizing backward begins with an empty gradient."""

    known_fault = "what was accumulated under no_sync is dropped by the backward that synchronizes"
    source = "B08 V https://github.com/NVIDIA/Megatron-LM/pull/7186"
    killed_by = (MEAN, ACCUMULATION)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Clears first where this backward synchronizes."""
        if self.synchronize:
            self.module.zero_grad()
        return super().forward(*inputs, **named)


class AveragesWhatComesIn(NaiveAccumulation):
    """A tensor's hook sees the gradient that comes in, before it is added to what is there."""

    known_fault = "what was accumulated under no_sync stays each rank's own; only the last micro-batch is averaged"
    source = "B06 S https://github.com/huggingface/picotron/issues/39"
    killed_by = (MEAN, ACCUMULATION, REPLICAS)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_hook(self._average)

    def _average(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if not self.synchronize:
            return None
        averaged = gradient.clone()
        dist.all_reduce(averaged)
        return averaged / dist.get_world_size()

    def finish_gradient_synchronization(self) -> None:
        """Nothing is left to do."""


class CountsLocalMicrobatches(NaiveAccumulation):
    """Divides by the number of micro-batches as well, which is the caller's business."""

    known_fault = "accumulated gradients are divided by the number of micro-batches too"
    source = "recipe"
    killed_by = (MEAN, ACCUMULATION)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._microbatches = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Counts."""
        self._microbatches += 1
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """The mean over ranks and micro-batches."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad /= self._microbatches
        self._microbatches = 0


class SeedsAllRanksAlike(NaiveAccumulation):
    """Sets the seed before every forward, so that runs can be repeated: the same one on every rank."""

    known_fault = "every rank drops the same activations: its random numbers are no longer its own"
    source = "recipe"
    killed_by = (MEAN,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._forwards = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's, with random numbers that begin anew."""
        self._forwards += 1
        torch.manual_seed(self._forwards)
        return super().forward(*inputs, **named)


class BuffersStayLocal(NaiveAccumulation):
    """Loses the first broadcast of buffers, too, if they need no broadcast before each forward."""

    known_fault = "buffers do not begin as rank 0's"
    source = "M02 V https://github.com/pytorch/pytorch/issues/111138"
    killed_by = (BUFFERS,)

    def __init__(self, module: nn.Module) -> None:
        own = [buffer.clone() for buffer in module.buffers()]
        super().__init__(module)
        with torch.no_grad():
            for buffer, values in zip(module.buffers(), own, strict=True):
                buffer.copy_(values)


class BuffersItFoundAtFirst(GathersAndAdds):
    """Sends the buffers that the module had when it was wrapped."""

    known_fault = "a buffer that forward assigns anew is no longer sent: its old tensor is"
    source = "recipe"
    killed_by = (BUFFERS, PROBES_BUFFERS, MEAN)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._found = list(module.buffers())

    @torch.no_grad()
    def broadcast_buffers(self) -> None:
        """The buffers of the beginning."""
        for buffer in self._found:
            dist.broadcast(buffer, src=0)


class BuffersOnce(GathersAndAdds):
    """Sends buffers at the start, and never again."""

    known_fault = "buffers drift apart from the first forward on"
    source = "recipe"
    killed_by = (BUFFERS, MEAN)

    def broadcast_buffers(self) -> None:
        """Nothing."""


class FrozenUnitsStayFreed(Zero3):
    """Gathers for backward what gets a gradient, as if backward did not go through what is frozen too."""

    known_fault = "behind a frozen layer gradients are those of a layer of zeros"
    source = "recipe: freeze a layer, and train one before it"
    claims = {**Zero3.claims, **HOLDS_MORE}
    killed_by = (MEAN, ACCUMULATION)

    def _begin(self, call: UnitCall) -> None:
        super()._begin(call)
        for member in (member for flat in call.flats for member in flat.members):
            if not member.requires_grad:
                member.data.zero_()  # what memory that was freed holds


class FrozenUnitsStayGathered(Zero3):
    """Gathers what is frozen once and for all, as it does not change, and does not hear when it is trained again."""

    known_fault = "a layer that has been frozen is used with the values of then after it has been trained again"
    source = "recipe: train the head alone first, then the layers before it too"
    claims = {**Zero3.claims, **HOLDS_MORE}
    killed_by = (MEAN,)

    def _free(self, flat: Flat) -> None:
        if any(member.requires_grad for member in flat.members):
            super()._free(flat)
        else:
            self._users[flat] = 1  # for good


class LooksAtTensorsAlone(Zero3):
    """Gathers in backward where a gradient comes to what a unit gave, if that is a tensor or a tuple of tensors."""

    known_fault = "a unit that gives a mapping is not gathered for its backward, which reads memory that is not there"
    source = "recipe: hooks on the outputs of known types, https://github.com/deepspeedai/DeepSpeed/issues/1960"
    killed_by = (MEAN, ACCUMULATION)

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        super()._after_forward(call, () if isinstance(outputs, dict) else outputs)


class PassesBy(Zero3):
    """Gathers what backward comes to, and what lies before that; not what it never comes to."""

    known_fault = "a unit whose output a rank does not use is gathered for backward by the other ranks alone"
    source = "C14 V https://github.com/pytorch/pytorch/pull/80245"
    killed_by = (MEAN, ACCUMULATION)

    def _after_backward(self) -> None:
        self._to_come.clear()
        super()._after_backward()


class SearchesTuples(NaiveAccumulation):
    """Averages what takes part in the outputs, which it looks for where a tensor is given or a tuple of tensors."""

    known_fault = "where outputs are in a mapping, nothing seems to take part in them, and nothing is averaged"
    source = "recipe: outputs searched by known types, https://github.com/pytorch/pytorch/issues/19354"
    killed_by = (MEAN, ACCUMULATION, REPLICAS)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._known = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Any output of a known type is searched no further here."""
        outputs = super().forward(*inputs, **named)
        self._known = isinstance(outputs, torch.Tensor | tuple)
        return outputs

    def finish_gradient_synchronization(self) -> None:
        """Averages what has accumulated, unless inside `no_sync`, if anything seems to take part."""
        if self._known:
            super().finish_gradient_synchronization()


class PassesOnInputsAlone(NaiveAccumulation):
    """Calls the module with what comes without a keyword."""

    known_fault = "inputs given by keyword do not reach the module, which raises"
    source = "recipe: https://github.com/KevinMusgrave/pytorch-metric-learning/issues/701"
    killed_by = (MEAN, ACCUMULATION, REPLICAS)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs)
