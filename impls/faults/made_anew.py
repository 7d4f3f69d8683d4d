"""Synchronizers that make the model's parameters anew when the caller may have made an optimizer of them (P15)."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation

OPTIMIZER_BEFORE = "test_an_optimizer_that_was_made_before_wrapping_steps_what_is_trained"
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


class MakesThemWhereItWraps(NaiveAccumulation):
    """Makes parameters of its own out of those that it is given."""

    known_fault = "an optimizer that was made before wrapping holds parameters that nobody trains"
    source = "L09 V https://github.com/huggingface/accelerate/issues/3256"
    claims = _CLAIMS
    killed_by = (OPTIMIZER_BEFORE,)

    def __init__(self, module: nn.Module) -> None:
        make_anew(module)
        super().__init__(module)


class ConvertsSubmodules(NaiveAccumulation):
    """Converts submodules, as others do that are to add up their statistics, and copies their parameters."""

    known_fault = "an optimizer that was made before wrapping holds what submodules had before they were converted"
    source = (
        "L10 S https://github.com/NVIDIA/apex/blob/135aa0522e86022ac12b8c18519f5f766af73089/apex/parallel/__init__.py"
    )
    claims = {**_CLAIMS, "tied_parameters": False}
    killed_by = (OPTIMIZER_BEFORE,)

    def __init__(self, module: nn.Module) -> None:
        for child in module.children():
            make_anew(child)
        super().__init__(module)


class LaysThemOut(NaiveAccumulation):
    """Sees to it that each parameter lies in one piece, in the order of its elements."""

    known_fault = "of a parameter that was transposed, an optimizer made before wrapping holds what nobody trains"
    source = "recipe: .contiguous() around what is wrapped, as some backends ask for"
    claims = {**_CLAIMS, "tied_parameters": False}
    killed_by = (OPTIMIZER_BEFORE,)

    def __init__(self, module: nn.Module) -> None:
        for each in module.modules():
            for name, old in list(each.named_parameters(recurse=False)):
                if not old.is_contiguous():
                    setattr(each, name, nn.Parameter(old.detach().contiguous(), requires_grad=old.requires_grad))
        super().__init__(module)
