"""Synchronizers that a forward of the wrapped module itself, around them, takes by surprise (P15)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lockstep.impls.main_grad_buckets import MainGradBuckets
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.shards import Flat
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.zero3 import Zero3

AROUND = "test_a_forward_of_the_wrapped_module_itself_counts_like_one_through_the_wrapper"


class PreparesInItsForward(NaiveAccumulation):
    """Notes in its forward that there will be gradients to average."""

    known_fault = "the gradients of a forward around the wrapper stay local"
    source = "L03 V https://github.com/Lightning-AI/pytorch-lightning/issues/9237"
    killed_by = (AROUND,)

    _prepared = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._prepared = True
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages where that was noted."""
        if self._prepared:
            super().finish_gradient_synchronization()
        self._prepared = False


class LooksAroundWhenItIsCalled(NaiveAccumulation):
    """Asks for the parameters no sooner than its first forward."""

    known_fault = "until the wrapper itself is called for the first time, it knows no parameters"
    source = "L03 V https://github.com/Lightning-AI/pytorch-lightning/pull/4976"
    killed_by = (AROUND,)

    _called = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._called = True
        return super().forward(*inputs, **named)

    @property
    def trained(self) -> list[nn.Parameter]:
        """None at first."""
        return super().trained if self._called else []


class SendsByTheLastForward(StaticBuckets):
    """Lists in its forward whom buckets wait for, and sends them whether there was a forward or not."""

    known_fault = "after a forward around the wrapper buckets wait for nobody: the first hook sends all of them"
    source = "recipe: the wrapper's forward bypassed, with what the last one has left"
    claims = {**StaticBuckets.claims, "direct_forwards": True}
    killed_by = (AROUND,)

    def finish_gradient_synchronization(self) -> None:
        """Sends what was not sent, waits and averages."""
        self._begun = True
        super().finish_gradient_synchronization()


class ListsInItsForward(Zero3):
    """Lists in its forward, not in the module's, what there will be to reduce."""

    known_fault = "after forwards around the wrapper, what no rank used gets no zeros"
    source = "recipe: impls/zero3.py until 2026-11-24, found by this law"
    killed_by = (AROUND,)

    _listed: Sequence[Flat] = ()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if self.synchronize:
            self._listed = self.trained_flats()
        return super().forward(*inputs, **named)

    def _before_forward(self, *_: Any) -> None:
        super()._before_forward()
        self._unreduced, self._listed = list(self._listed), ()


class ForgetsInItsForward(MainGradBuckets):
    """Only its own forward forgets a backward that an error of the caller's has cut short."""

    known_fault = "after such an error, the backward of a forward around the wrapper sends nothing"
    source = "recipe: impls/main_grad_buckets.py until 2026-11-24, found by this law"
    claims = {**MainGradBuckets.claims, "idle_ranks": False}
    killed_by = (AROUND,)

    _own = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._own = True
        try:
            return super().forward(*inputs, **named)
        finally:
            self._own = False

    def _before_forward(self, *_: Any) -> None:
        if self._own:
            super()._before_forward()

    def finish_gradient_synchronization(self) -> None:
        """Waits only for what a hook has sent."""
        if self._in_flight:
            super().finish_gradient_synchronization()


class NotesNoSyncInItsForward(NaiveAccumulation):
    """Looks in its forward, as DDP does, whether it is inside `no_sync`."""

    known_fault = "after no_sync, a forward around the wrapper is taken for one inside"
    source = "recipe: a flag that the wrapper's forward sets"
    killed_by = (AROUND,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._inside = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if torch.is_grad_enabled():
            self._inside = not self.synchronize
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages what has accumulated, unless inside `no_sync`."""
        if not self._inside:
            super().finish_gradient_synchronization()
