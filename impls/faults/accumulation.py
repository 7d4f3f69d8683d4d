"""Synchronizers that count a micro-batch other than once, or lose track of `no_sync` (P3)."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.zero3 import UnitCall, Zero3

COUNTS_ONCE = "test_no_sync_accumulates_and_then_counts_once"
BIG_BATCH = "test_micro_batches_count_as_one_big_batch"
AFTER_AN_ERROR = "test_training_goes_on_rightly_after_an_error_that_the_caller_caught"
NESTED = "test_leaving_an_inner_no_sync_does_not_end_the_outer"
TOGETHER = "test_features_go_together_in_any_combination"
IN_STEP = "test_an_error_on_some_ranks_leaves_all_in_step"
_PICOTRON = "https://github.com/huggingface/picotron (data_parallel/data_parallel.py)"


class NoSyncIsNotExceptionSafe(StaticBuckets):
    """`no_sync` without try and finally."""

    known_fault = "an error inside no_sync leaves it switched on for good"
    source = f"B07 S {_PICOTRON}"
    killed_by = (AFTER_AN_ERROR, IN_STEP)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """An error does not get as far as the last line."""
        before, self.synchronize = self.synchronize, False
        yield
        self.synchronize = before


class NoSyncDoesNotNest(StaticBuckets):
    """`no_sync` ends by switching synchronization on, whatever was before."""

    known_fault = "leaving an inner no_sync ends the outer one"
    source = f"B07 S {_PICOTRON}"
    killed_by = (NESTED,)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Restores True."""
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = True


class AnErrorEndsEveryNoSync(StaticBuckets):
    """`no_sync` clears up after an error by switching synchronization on, whatever was before."""

    known_fault = "an error inside an inner no_sync ends the outer one"
    source = f"B07 S {_PICOTRON}"
    killed_by = (AFTER_AN_ERROR, IN_STEP, TOGETHER)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Restores what was before, or, after an error, True."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        except BaseException:
            self.synchronize = True
            raise
        self.synchronize = before


class ReducesTheIncomingGradient(NaiveAccumulation):
    """A hook that fires before accumulation averages what comes in; what has accumulated stays local."""

    known_fault = "only the last micro-batch is averaged, those inside no_sync stay local"
    source = f"B06 S {_PICOTRON}"
    claims = {**NaiveAccumulation.claims, "replaced_parameters": False, "hook_order": False}
    killed_by = (COUNTS_ONCE, BIG_BATCH, NESTED)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_hook(self._average)

    def _average(self, incoming: torch.Tensor) -> torch.Tensor:
        if self.synchronize:
            incoming = incoming.clone()
            dist.all_reduce(incoming)
            incoming /= dist.get_world_size()
        return incoming

    def finish_gradient_synchronization(self) -> None:
        """The hooks have done everything."""


class ReducesWhatWasReduced(NaiveAccumulation):
    """Divides what comes in and sums what has accumulated: what was there since the last mean is summed again."""

    known_fault = "a second backward without zero_grad sums the first one's mean over ranks once more"
    source = "A19 V https://github.com/PaddlePaddle/Paddle/issues/29920"
    claims = {**NaiveAccumulation.claims, "replaced_parameters": False, "averaging": "divide then sum"}
    killed_by = (
        "test_gradients_equal_the_mean_over_ranks",
        "test_how_many_ranks_share_the_samples_does_not_matter",
        "test_zeroed_gradients_do_not_come_back",
    )

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_hook(lambda incoming: incoming / dist.get_world_size())

    def finish_gradient_synchronization(self) -> None:
        """Right as long as every gradient is zeroed in between."""
        for parameter in self.trained:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class NoSyncDoesNothing(NaiveAccumulation):
    """An inherited `no_sync` that changes nothing: each backward is taken for the last, and the next one clears."""

    known_fault = "only the last micro-batch survives"
    source = "B08 V https://github.com/NVIDIA/Megatron-LM/pull/7186"
    killed_by = (COUNTS_ONCE, BIG_BATCH, NESTED)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Drops what an earlier micro-batch of the same window left."""
        if not self.synchronize or self._accumulating:
            for parameter in self.trained:
                parameter.grad = None
        self._accumulating = not self.synchronize
        return super().forward(*inputs, **named)

    _accumulating = False


class OneRankOverwrites(NaiveAccumulation):
    """A shortcut for a group of one copies the gradient to where the others add it."""

    known_fault = "on one rank only the last micro-batch survives"
    source = "A02 V https://github.com/ServiceNow/Fast-LLM/issues/550"
    killed_by = (COUNTS_ONCE, BIG_BATCH)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Overwrite the gradients that are there already."""
        if dist.get_world_size() == 1:
            for parameter in self.trained:
                parameter.grad = None
        return super().forward(*inputs, **named)


class SendsInsideNoSync(NaiveAccumulation):
    """A wrapper inside the wrapper reduces although the outer one was told not to."""

    known_fault = "communicates inside no_sync: right values at the full cost"
    source = "B16 V https://github.com/meta-pytorch/torchrec/pull/4121"
    claims = {**NaiveAccumulation.claims, "replaced_parameters": False, "hook_order": False}
    killed_by = (COUNTS_ONCE, NESTED)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._reduce)

    def _reduce(self, parameter: nn.Parameter) -> None:
        if not self.synchronize and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class UsedCountsOnlyWhenSynchronizing(StaticBuckets):
    """Notes which parameters were used only in backwards that synchronize."""

    known_fault = "what was used only inside no_sync is taken for unused and keeps its local gradient"
    source = "B02 V https://github.com/pytorch/pytorch/issues/69031"
    killed_by = ("test_what_was_used_only_inside_no_sync_is_synchronized", COUNTS_ONCE, BIG_BATCH, TOGETHER)

    def finish_gradient_synchronization(self) -> None:
        """Hides the gradients of parameters whose hooks have not fired since the last synchronizing forward."""
        hidden = {p: p.grad for bucket in self._buckets for p in bucket.waiting_for if p.grad is not None}
        hidden = {parameter: gradient.clone() for parameter, gradient in hidden.items()}
        for parameter in hidden:
            parameter.grad = None
        super().finish_gradient_synchronization()
        for parameter, gradient in hidden.items():
            if parameter.grad is None:
                parameter.grad = gradient


class CountsLeftOver(StaticBuckets):
    """Starts to count which members of a bucket are ready when it has finished, not when it begins."""

    known_fault = "what a backward cut short has counted and sent is taken for the next one's"
    source = "systems: static buckets, counts left over from the step before"
    killed_by = (AFTER_AN_ERROR,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 0.0) -> None:
        super().__init__(module, bucket_cap_mb)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Does not start afresh."""
        counted, sent = [bucket.waiting_for for bucket in self._buckets], list(self._in_flight)
        again = self._begun and self.synchronize
        result = super().forward(*inputs, **named)
        if again and len(counted) == len(self._buckets):
            for bucket, waiting_for in zip(self._buckets, counted, strict=True):
                bucket.waiting_for = waiting_for
            self._in_flight = sent
        return result


class LeavesInFlight(StaticBuckets):
    """Only a forward that synchronizes waits for what a backward cut short has sent."""

    known_fault = "what such a backward has sent comes upon what accumulates inside the next no_sync"
    source = "recipe: impls/static_buckets.py until 2026-11-24, found by P11"
    killed_by = (AFTER_AN_ERROR,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 0.0) -> None:
        super().__init__(module, bucket_cap_mb)

    def prepare(self) -> None:
        """Inside `no_sync` it does nothing."""
        if self.synchronize:
            super().prepare()


class ClosesTheLastUnit(Zero3):
    """Of the units in which an error has found backward, frees the one that it was in, not those around that."""

    known_fault = "after an error in backward the root keeps what it had gathered, and uses it once it has been stepped"
    source = "recipe: raise inside the backward of a submodule, then take steps"
    claims = {**Zero3.claims, **HOLDS_MORE}
    killed_by = (AFTER_AN_ERROR,)

    def _before_forward(self, *nothing: Any) -> None:
        self._open = self._open[-1:]
        super()._before_forward(*nothing)


class FreesWhatReturns(Zero3):
    """Frees parameters when a forward returns, and not when it raises."""

    known_fault = "after an error in forward the modules that it came from keep what they had gathered"
    source = "recipe: raise inside a submodule's forward, then take steps; a hook without always_call"
    claims = {**Zero3.claims, **HOLDS_MORE}
    killed_by = (AFTER_AN_ERROR,)

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if outputs is not None:
            super()._after_forward(call, outputs)


class ClipsEachMicroBatch(NaiveAccumulation):
    """Clips local gradients in every micro-batch, before they are averaged."""

    known_fault = "gradients are clipped by their local norm in every micro-batch"
    source = "B25 V https://github.com/tenstorrent/tt-metal/issues/17568"
    killed_by = ("test_gradients_equal_the_mean_over_ranks", "test_gradients_scale_with_the_loss")

    def finish_gradient_synchronization(self) -> None:
        """To a norm of at most one."""
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        super().finish_gradient_synchronization()


class NoSyncCoversOneMicroBatch(StaticBuckets):
    """Takes the end of a backward for the end of `no_sync`: a context around a loop covers the first of it."""

    known_fault = "of several micro-batches inside one no_sync only the first stays local"
    source = "recipe"
    killed_by = (COUNTS_ONCE,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Synchronizes, where a backward has run since `no_sync` was entered."""
        if self._has_run:
            self.synchronize = True
        return super().forward(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Counts backwards from here on."""
        self._has_run = False
        with super().no_sync():
            yield
        self._has_run = False

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        super()._on_gradient(parameter)
        self._has_run = not self.synchronize

    _has_run = False


class CountsHooksOnce(StaticBuckets):
    """Learns in the first window how often each hook fires, and reduces when as many have fired again."""

    known_fault = "what fires inside no_sync counts towards the number that the last backward alone never reaches"
    source = "B01 V https://github.com/pytorch/pytorch/pull/187732"
    killed_by = (COUNTS_ONCE,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._expected: Counter[nn.Parameter] | None = None
        self._fired: Counter[nn.Parameter] = Counter()

    def prepare(self) -> None:
        """Counts anew, once it knows what to expect."""
        if self.synchronize and self._expected is not None:
            self._fired.clear()
        super().prepare()

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._fired[parameter] += 1
        super()._on_gradient(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Leaves this rank's own gradient where hooks are still awaited."""
        if self._expected is None:
            self._expected = Counter(self._fired)
        own = {
            parameter: parameter.grad.clone()
            for parameter in self.trained
            if parameter.grad is not None and self._fired[parameter] < self._expected[parameter]
        }
        super().finish_gradient_synchronization()
        for parameter, gradient in own.items():
            parameter.grad = gradient


class AveragesWhereAnInnerNoSyncHasEnded(NaiveAccumulation):
    """The same, where gradients are averaged when the caller says that backward is over, and not by hooks."""

    known_fault = "what is ended inside an outer no_sync is averaged once an inner one has ended"
    source = "recipe: a loop that ends the synchronization after each micro-batch"
    killed_by = (COUNTS_ONCE,)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Restores True."""
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = True
