"""A wrapper that never runs the module that it is given."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation


class RunsACopy(NaiveAccumulation):
    """Each forward runs a copy, brought up to date. What its buffers become, and its gradients, the module gets."""

    # No hook of the module's own parameters fires, and no evaluation reads them: neither can be seen.
    claims = {
        **NaiveAccumulation.claims,
        **{"hook_order": False, "survives_errors": False, "evaluates": False},
        **{"several_forwards": False, "replaced_parameters": False},
        **{"callers_hooks": False, "module_hooks": False},
    }
    odd = "runs a copy of the module, whose gradients and buffers it hands over"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.copied = copy.deepcopy(module)
        for parameter, copied in zip(module.parameters(), self.copied.parameters(), strict=True):
            copied.requires_grad_().register_post_accumulate_grad_hook(partial(hand_over, parameter))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The copy's forward."""
        with torch.no_grad():
            for parameter, copied in zip(self.module.parameters(), self.copied.parameters(), strict=True):
                copied.copy_(parameter).requires_grad_(parameter.requires_grad)
            for buffer, copied in zip(self.module.buffers(), self.copied.buffers(), strict=True):
                copied.copy_(buffer)
        result = self.copied(*inputs, **named)
        for buffer, copied in zip(self.module.buffers(), self.copied.buffers(), strict=True):
            buffer.copy_(copied)
        return result


def hand_over(parameter: nn.Parameter, copied: torch.Tensor) -> None:
    """Adds a gradient of the copy to the module's own."""
    parameter.grad = copied.grad if parameter.grad is None or copied.grad is None else parameter.grad + copied.grad
    copied.grad = None
