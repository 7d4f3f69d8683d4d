"""Synchronizers that make the model's parameters anew after the caller may have made an optimizer of them (P15)."""

from typing import Any

import torch
from torch import nn

from impls.naive import NaiveAccumulation

OPTIMIZER_FIRST = "test_an_optimizer_that_is_made_right_after_wrapping_steps_what_is_trained"
_CLAIMS = {
    **NaiveAccumulation.claims,
    **dict.fromkeys(("replaced_parameters", "freezing", "direct_forwards", "other_models", "reloads"), False),
}


def make_anew(module: nn.Module) -> None:
    """New parameters with the values, the gradients and the names of the old."""
    new: dict[nn.Parameter, nn.Parameter] = {}
    for each in module.modules():
        for name, old in each.named_parameters(recurse=False):
            if old not in new:
                new[old] = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
                new[old].grad = old.grad
            setattr(each, name, new[old])


class MakesThemInItsFirstForward(NaiveAccumulation):
    """Makes room for the parameters as late as it can."""

    known_fault = "an optimizer that was made before the first forward holds parameters that nobody trains"
    source = "recipe: torch's replicate, https://github.com/pytorch/pytorch/pull/132954"
    claims = _CLAIMS
    killed_by = (OPTIMIZER_FIRST,)

    _made = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not self._made:
            make_anew(self.module)
        self._made = True
        return super().forward(*inputs, **named)


class MakesThemToTrain(MakesThemInItsFirstForward):
    """The same, in the first forward that autograd records."""

    known_fault = "an optimizer that was made before the first training step holds parameters that nobody trains"
    source = "recipe: parameters sharded at the first step, https://github.com/intelligent-machine-learning/dlrover/issues/585"
    killed_by = (OPTIMIZER_FIRST,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        return self.module(*inputs, **named)


class MakesThemOnceAnOrderIsKnown(NaiveAccumulation):
    """Lays the parameters out by the order in which their first gradients came."""

    known_fault = "after the first synchronization the caller's optimizer holds parameters that nobody trains"
    source = "recipe: a layout that is rebuilt after the first backward, and parameters with it"
    claims = {**_CLAIMS, "survives_errors": False}
    killed_by = (OPTIMIZER_FIRST,)

    _made = False

    def finish_gradient_synchronization(self) -> None:
        """Averages first."""
        super().finish_gradient_synchronization()
        if self.synchronize and not self._made:
            self._made = True
            make_anew(self.module)
