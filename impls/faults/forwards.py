"""Wrappers that go wrong where two forwards come before one backward (P3)."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.faults.accumulation import AFTER_AN_ERROR
from lockstep.impls.naive import NaiveAccumulation

DROPPED = "test_a_forward_whose_loss_is_dropped_leaves_no_trace"
TWO_FORWARDS = "test_two_forwards_before_one_backward_count_once_each"


class CountsForwards(NaiveAccumulation):
    """Synchronizes when there have been as many backwards as forwards that are to synchronize."""

    known_fault = "after a forward without a backward of its own nothing is synchronized any more"
    source = "B22 V https://github.com/pytorch/pytorch/issues/58111"
    killed_by: tuple[str, ...] = (TWO_FORWARDS, AFTER_AN_ERROR, DROPPED)

    _pending = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """One more to wait for."""
        self._pending += self.synchronize
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """One fewer."""
        self._pending -= 1
        if not self._pending:
            super().finish_gradient_synchronization()


class ExpectsABackward(NaiveAccumulation):
    """Takes two forwards without a backward in between for a mistake of the caller's."""

    known_fault = "after a loss that was dropped the next forward raises"
    source = "recipe: as of an older DDP, https://github.com/open-mmlab/mmdetection/issues/2153"
    claims = {**NaiveAccumulation.claims, "several_forwards": False, "survives_errors": False, "buffers": None}
    killed_by = (DROPPED,)

    _waiting = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        if self._waiting:
            raise RuntimeError("a forward was called before the backward of the last one")
        output = super().forward(*inputs, **named)
        self._waiting = output.requires_grad
        if output.requires_grad:
            output.register_hook(lambda _: self._came())
        return output

    def _came(self) -> None:
        self._waiting = False


class WritesInEachForward(NaiveAccumulation):
    """Writes the parameters anew in each forward, though autograd may still need what is there."""

    known_fault = "a second forward changes in place what the backward of the first needs, which raises"
    source = "M04 V https://github.com/pytorch/pytorch/issues/22095"
    killed_by = (TWO_FORWARDS,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The values stay the same."""
        with torch.no_grad():
            for parameter in self.trained:
                parameter.copy_(parameter.clone())
        return super().forward(*inputs, **named)


class _Again(torch.autograd.Function):
    """A forward without autograd, and in backward the forward of what a wrapper has kept last."""

    @staticmethod
    def forward(context: Any, wrapper: nn.Module, needs: torch.Tensor) -> torch.Tensor:
        context.wrapper = wrapper
        inputs, named = wrapper.kept
        output: torch.Tensor = wrapper.module(*inputs, **named)
        return output

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[None, None]:
        inputs, named = context.wrapper.kept
        with torch.enable_grad():
            context.wrapper.module(*inputs, **named).backward(gradient)
        return None, None


class KeepsOneForward(NaiveAccumulation):
    """Recomputes in backward, from inputs that it keeps on itself, not in the graph."""

    known_fault = "of two forwards, the second is recomputed twice and the first is lost"
    source = "recipe: recompute in backward from what forward has kept on the module"
    claims = {**NaiveAccumulation.claims, "buffers": None, "survives_errors": False, "reentrant_checkpointing": None}
    killed_by = (TWO_FORWARDS,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Keeps the inputs of the last."""
        if not torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        self.kept = inputs, named
        return _Again.apply(self, torch.zeros((), requires_grad=True))


class ThirdForwardIsTheFirstAgain(NaiveAccumulation):
    """Knows two forwards before a backward, such as those of a pair of views; at a third one it begins anew."""

    known_fault = "of three forwards before one backward the last is taken for one after an error, and nothing is sent"
    source = "recipe: a count of forwards that goes up to two"
    killed_by = (TWO_FORWARDS,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._pending, self._begins_anew = 0, False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if torch.is_grad_enabled():
            self._begins_anew = self._pending == 2
            self._pending += 1
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages what has accumulated, unless inside `no_sync`."""
        self._pending = 0
        if not self._begins_anew:
            super().finish_gradient_synchronization()
