"""Code that takes a forward in training mode without autograd for the first half of a micro-batch (P5, P12).

Losses are measured so: each is right where such forwards are in evaluation mode.
"""

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lockstep.impls.faults.forwards import CountsForwards
from lockstep.impls.faults.prepared import IN_PAIRS, SetsAveragesApartInForward
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import UnitCall, Zero3

IN_STEP = "test_a_forward_without_a_backward_leaves_all_in_step"
MEASURED_LATE = "test_a_loss_may_be_measured_between_a_forward_and_its_backward"
READS = "test_an_evaluation_reads_what_the_last_step_has_left"
_CLAIMS = {**IN_PAIRS, "several_forwards": False, "zeroes_late": False, "eval_mode": False}


class CountsForwardsInTrainingMode(CountsForwards):
    """Counts those forwards alone that are in training mode."""

    known_fault = "after a loss that was only measured, in training mode, nothing is synchronized any more"
    source = "recipe: https://github.com/pytorch/pytorch/issues/58111, counting in training mode alone"
    claims = _CLAIMS
    killed_by = (IN_STEP,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """One more to wait for, or none."""
        return super().forward(*inputs, **named) if self.training else self.module(*inputs, **named)


class SetsAveragesApartInTrainingMode(SetsAveragesApartInForward):
    """Does so in every forward in training mode."""

    known_fault = "a loss that is only measured, in training mode, takes averages away before they are stepped"
    source = "recipe: an average set apart by the next forward, https://github.com/pytorch/pytorch/pull/73535"
    claims = _CLAIMS
    killed_by = (IN_STEP,)

    def begins(self) -> bool:
        """By the mode, which says nothing of autograd."""
        return self.training


class StaysWholeForABackward(Zero3):
    """Leaves a unit whole after a forward in training mode, for its backward to free; evaluations free it at once."""

    known_fault = "what was gathered for a loss that is only measured, in training mode, is used again after a step"
    source = "recipe: parameters kept from forward to backward, by the mode and not by whether autograd records"
    killed_by = (READS, IN_STEP)

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if torch.is_grad_enabled() or not call.module.training:
            super()._after_forward(call, outputs)


class NothingToReduceAfterALook(Zero2):
    """Takes a forward without autograd for the last one before a step: there is nothing to reduce any more."""

    known_fault = "a loss that is measured before a backward ends what was made ready for it: nothing is reduced"
    source = "recipe: what is to be reduced is listed in each forward, a target's too"
    killed_by = (MEASURED_LATE,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        self._to_send, self._waiting_for = [], set()
        return self.module(*inputs, **named)


class ForgetsItsForward(NaiveAccumulation):
    """Goes by what the last forward was: averages after it, or only looked."""

    known_fault = "after a loss that is measured before a backward, gradients stay local"
    source = "recipe: a flag that every forward sets, and whoever finishes a synchronization asks"
    claims = {**NaiveAccumulation.claims, "direct_forwards": False}
    killed_by = (MEASURED_LATE,)

    _with_autograd = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._with_autograd = torch.is_grad_enabled()
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages what has accumulated, unless the last forward was a look."""
        if self._with_autograd:
            super().finish_gradient_synchronization()


class ClosesItsGraph(NaiveAccumulation):
    """Lets a forward take back what the one before it has prepared, so that a dropped loss leaves nothing."""

    known_fault = "a forward without autograd takes back the hooks of the forward whose backward is still to come"
    source = "recipe: hooks on outputs that the next forward removes"
    claims = {**NaiveAccumulation.claims, "several_forwards": False, "direct_forwards": False, "backwards": None}
    killed_by = (MEASURED_LATE,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._hooks: list[Any] = []
        self._backward_came = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        for hook in self._hooks:
            hook.remove()
        output = super().forward(*inputs, **named)
        self._hooks = [each.register_hook(self._comes) for each in tree_leaves(output) if self._is_trained(each)]
        return output

    def _is_trained(self, each: Any) -> bool:
        return isinstance(each, torch.Tensor) and each.requires_grad

    def _comes(self, _: torch.Tensor) -> None:
        self._backward_came = True

    def finish_gradient_synchronization(self) -> None:
        """Averages where a backward has come."""
        if self._backward_came:
            super().finish_gradient_synchronization()
            self._backward_came = False
