"""What takes a forward in training mode for the first half of a micro-batch, though it is without autograd (P5, P12).

Losses are measured so: each is right where such forwards are in evaluation mode.
"""

from typing import Any

import torch
from torch import nn

from impls.faults.prepared import IN_PAIRS
from impls.naive import NaiveAccumulation
from impls.zero3 import UnitCall, Zero3

IN_STEP = "test_a_forward_without_a_backward_leaves_all_in_step"
READS = "test_an_evaluation_reads_what_the_last_step_has_left"
_CLAIMS = {**IN_PAIRS, "several_forwards": False, "zeroes_late": False, "eval_mode": False}


class CountsForwardsInTrainingMode(NaiveAccumulation):
    """Synchronizes when there have been as many backwards as forwards in training mode that are to synchronize."""

    known_fault = "after a loss that was only measured, in training mode, nothing is synchronized any more"
    source = "recipe: https://github.com/pytorch/pytorch/issues/58111, counting in training mode alone"
    claims = _CLAIMS
    killed_by = (IN_STEP,)

    _pending = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """One more to wait for."""
        self._pending += self.training and self.synchronize
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """One fewer."""
        self._pending -= 1
        if not self._pending:
            super().finish_gradient_synchronization()


class SetsAveragesApartInTrainingMode(NaiveAccumulation):
    """Keeps what has been averaged out of the sum that the next micro-batch makes, and adds it again."""

    known_fault = "a loss that is only measured, in training mode, takes averages away before they are stepped"
    source = "recipe: an average set apart by the next forward, https://github.com/pytorch/pytorch/pull/73535"
    claims = _CLAIMS
    killed_by = (IN_STEP,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._apart: dict[nn.Parameter, torch.Tensor] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if self.training and not self._apart:
            self._apart = {each: each.grad for each in self.trained if each.grad is not None}
            for parameter in self._apart:
                parameter.grad = None
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages what is new."""
        super().finish_gradient_synchronization()
        if self.synchronize:
            for parameter, before in self._apart.items():
                parameter.grad = before if parameter.grad is None else parameter.grad + before
            self._apart = {}


class StaysWholeForABackward(Zero3):
    """Leaves a unit whole after a forward in training mode, for its backward to free; evaluations free it at once."""

    known_fault = "what was gathered for a loss that is only measured, in training mode, is used again after a step"
    source = "recipe: parameters kept from forward to backward, by the mode and not by whether autograd records"
    killed_by = (READS, IN_STEP)

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if torch.is_grad_enabled() or not call.module.training:
            super()._after_forward(call, outputs)
