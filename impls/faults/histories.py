"""Faults that only some histories show: replaced again, frozen when loaded, evaluated right after an error."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.faults.accumulation import AFTER_AN_ERROR
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer
from lockstep.impls.wrapper import add_over_ranks

REPLACED = "test_parameters_that_are_replaced_are_synchronized"
GOING_BACK = "test_going_back_to_what_was_saved_undoes_what_came_since"
FOLLOWED = "test_what_is_frozen_or_trained_again_is_followed"
OVERFLOWS = "test_ranks_agree_on_overflows_and_on_the_loss_scale"
TIMING = "test_collectives_may_read_and_write_at_any_time"


class HooksById(NaiveAccumulation):
    """Remembers by ``id`` which parameters have its hook; Python gives the id of one that is gone to another."""

    known_fault = "a parameter that is replaced again and again is, at the address of an earlier one, no longer reduced"
    source = "recipe: a set of ids that are never dropped"
    claims = {**NaiveAccumulation.claims, "direct_forwards": False}
    killed_by = (REPLACED,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._hooked: set[int] = set()
        self._ready: set[int] = set()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        for parameter in self.trained:
            if id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                parameter.register_post_accumulate_grad_hook(lambda each: self._ready.add(id(each)))
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages what its hooks have seen."""
        if self.synchronize:
            for parameter in self.trained:
                if parameter.grad is not None and id(parameter) in self._ready:
                    add_over_ranks(parameter.grad, self.group)
                    parameter.grad /= dist.get_world_size(self.group)
            self._ready.clear()


class CatchesExceptions(StaticBuckets):
    """Leaves `no_sync` by its end or by an Exception."""

    known_fault = "after Ctrl-C inside no_sync nothing is synchronized any more"
    source = "recipe: except Exception where finally is meant"
    killed_by = (AFTER_AN_ERROR,)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """KeyboardInterrupt is no Exception."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        except Exception:
            self.synchronize = before
            raise
        self.synchronize = before


class SwallowsErrors(StaticBuckets):
    """Has a class for `no_sync`, whose end gives what nobody should ask for."""

    known_fault = "an error inside no_sync ends there, and nobody hears of it"
    source = "recipe: an __exit__ that returns what it has put back"
    killed_by = (AFTER_AN_ERROR,)

    class _NoSync:
        def __init__(self, wrapper: StaticBuckets) -> None:
            self.wrapper = wrapper

        def __enter__(self) -> None:
            self.before, self.wrapper.synchronize = self.wrapper.synchronize, False

        def __exit__(self, *_: object) -> bool:
            self.wrapper.synchronize = self.before
            return self.before

    def no_sync(self) -> Any:
        """Once; a second one inside it hands errors on."""
        return self._NoSync(self)


class ForgetsInFlightToEvaluate(StaticBuckets):
    """An evaluation has nothing to wait for, and forgets what is on its way."""

    known_fault = "what an error in backward has left in flight arrives, after an evaluation, in what came since"
    source = "recipe: handles dropped by a forward without autograd"
    killed_by = (TIMING,)

    def prepare(self) -> None:
        """Right where a synchronization was finished before."""
        if not torch.is_grad_enabled():
            self._in_flight.clear()
        super().prepare()


class _OfWhatIsTrained(MasterOptimizer):
    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]] | None) -> None:
        before = {name: held.detach().clone() for name, held in self.held.items()}
        super().load(state)
        for name in self.masters:
            if not self.named[name].requires_grad:
                self.held[name].data.copy_(before[name])


class LoadsMastersOfWhatIsTrained(StaticBucketsTrainer):
    """Takes the masters of frozen parameters for something that nobody needs."""

    known_fault = "a parameter that was frozen when its master was loaded goes back, once it is trained again"
    source = "recipe: a load that walks over what requires gradients"
    claims = {**StaticBucketsTrainer.claims, "reloads": True}
    killed_by = (GOING_BACK,)
    optimizer_class = _OfWhatIsTrained


class TrustsAScaleOfOne(StaticBucketsTrainer):
    """With a loss scale of 1 there is nothing to divide, and it looks at nothing."""

    known_fault = "at a loss scale of 1 infinite gradients are stepped"
    source = "recipe: a shortcut for a scale that has come down to 1"
    killed_by = (OVERFLOWS,)

    def unscale_(self, scale: float) -> bool:
        """Right for any other scale."""
        return scale == 1 or super().unscale_(scale)


class ForgetsTheStateOfWhatIsFrozen(StaticBucketsTrainer):
    """Drops the state of what it does not step, to save memory."""

    known_fault = "momentum begins anew where a parameter was frozen for a while"
    source = "recipe: state of what is not trained, freed before a step"
    killed_by = (FOLLOWED,)

    class _Frees(MasterOptimizer):
        def step(self) -> None:
            for name, parameter in self.named.items():
                if not parameter.requires_grad:
                    self.inner.state.pop(self.held[name], None)
            super().step()

    optimizer_class = _Frees
