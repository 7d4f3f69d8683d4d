"""Wrappers that go wrong where a micro-batch goes backward several times (P3)."""

from typing import Any

import torch

from lockstep.impls.end_of_backward import AtTheEndOfBackward
from lockstep.impls.zero3 import Zero3

SEVERAL_BACKWARDS = "test_each_of_several_backwards_counts"


class FirstBackwardAlone(AtTheEndOfBackward):
    """Averages at the end of backward, once for each forward, as DDP does."""

    known_fault = "what a second backward through a forward adds stays on its rank"
    source = "recipe: one synchronization for each forward, https://github.com/pytorch/pytorch/issues/47260"
    killed_by = (SEVERAL_BACKWARDS,)

    _due = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Makes the next backward the one to synchronize."""
        if torch.is_grad_enabled():
            self._due = self.synchronize
        return super().forward(*inputs, **named)

    def on_end(self) -> None:
        """Averages, if that is due."""
        if self._due:
            self._due = False
            super().finish_gradient_synchronization()

    def finish_gradient_synchronization(self) -> None:
        """All is done."""


class KeepsTheLastMean(Zero3):
    """Replaces the mean of an earlier backward by the new one."""

    known_fault = "of several backwards through a forward only the last counts"
    source = "B09 V https://github.com/allenai/open-instruct/pull/1498"
    claims = {**Zero3.claims, "adds_to_averages": False}
    killed_by = (SEVERAL_BACKWARDS,)

    def settle(self, reduction: Any) -> None:
        """Forgets what is there."""
        for member in reduction.flat.members:
            self.means.pop(member, None)
        super().settle(reduction)


class ExpectsOneBackward(AtTheEndOfBackward):
    """Goes through its states in turn: forward, backward, over."""

    known_fault = "a second backward after a forward is refused in the middle of training"
    source = "recipe: a backward that expects a forward right before, https://github.com/facebookresearch/fairscale/issues/918"
    killed_by = (SEVERAL_BACKWARDS,)

    _state = "over"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if torch.is_grad_enabled():
            self._state = "forward"
        return super().forward(*inputs, **named)

    def _on_backward(self, gradient: torch.Tensor) -> None:
        assert self._state != "over", "a backward comes after a forward"
        super()._on_backward(gradient)

    def on_end(self) -> None:
        """The last state."""
        self._state = "over"


class MeanOfBackwards(AtTheEndOfBackward):
    """Divides by the number of backwards since gradients were last final."""

    known_fault = "gradients are the mean over backwards, not their sum"
    source = "recipe: backwards are counted where micro-batches are meant"
    killed_by = (SEVERAL_BACKWARDS,)

    _backwards = 0

    def on_end(self) -> None:
        """One more, unless inside `no_sync`."""
        self._backwards += self.synchronize

    def finish_gradient_synchronization(self) -> None:
        """The mean over both."""
        super().finish_gradient_synchronization()
        if self.synchronize:
            for parameter in self.trained:
                if parameter.grad is not None and self._backwards > 1:
                    parameter.grad /= self._backwards
            self._backwards = 0
