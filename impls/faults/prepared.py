"""Synchronizers that prepare in a forward what its backward is to find, and that the caller may undo (P3)."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import add_over_ranks

ZEROED_LATE = "test_gradients_may_be_zeroed_between_forward_and_backward"
# Each takes a forward for the first half of a micro-batch of its own; the other laws say what comes of that.
IN_PAIRS = {
    **NaiveAccumulation.claims,
    **dict.fromkeys(("drops_losses", "drops_windows", "survives_errors", "direct_forwards", "freezing"), False),
    **dict.fromkeys(("replaced_parameters", "moved_parameters", "other_models"), False),
    "backwards": None,
}


class PointsGradientsInForward(NaiveAccumulation):
    """Makes the gradients before backward writes them, and averages what it has made."""

    known_fault = "gradients that were zeroed since, by setting them to None, are not the ones that are averaged"
    source = "recipe: gradients that are views of buckets, https://github.com/facebookresearch/fairscale/issues/354"
    claims = IN_PAIRS
    killed_by = (ZEROED_LATE,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._made: list[torch.Tensor] = []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if torch.is_grad_enabled():
            for parameter in self.trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._made = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages them."""
        if self.synchronize:
            for gradient in self._made:
                add_over_ranks(gradient, self.group)
                gradient /= torch.distributed.get_world_size(self.group)


class SetsAveragesApartInForward(NaiveAccumulation):
    """Keeps what has been averaged out of the next sum, and adds it again."""

    known_fault = "an average that was zeroed between forward and backward comes back"
    source = "recipe: an average set apart by the next forward, https://github.com/pytorch/pytorch/pull/73535"
    claims = IN_PAIRS
    killed_by = (ZEROED_LATE,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._apart: dict[nn.Parameter, torch.Tensor] = {}
        self._averaged = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if self.begins() and self._averaged:
            self._averaged = False
            self._apart = {each: each.grad for each in self.trained if each.grad is not None}
            for parameter in self._apart:
                parameter.grad = None
        return super().forward(*inputs, **named)

    def begins(self) -> bool:
        """True if a backward is to follow this forward."""
        return torch.is_grad_enabled()

    def finish_gradient_synchronization(self) -> None:
        """Averages what is new."""
        super().finish_gradient_synchronization()
        if self.synchronize:
            for parameter, average in self._apart.items():
                parameter.grad = average if parameter.grad is None else parameter.grad + average
            self._apart, self._averaged = {}, True


class ForgetsWithItsGradients(NaiveAccumulation):
    """Zeroes gradients itself, and with them whatever it knew of a backward to come."""

    known_fault = "zero_grad resets what the forward before it has noted, and nothing is synchronized"
    source = "recipe: a zero_grad that resets a synchronizer, as of one that counts"
    claims = IN_PAIRS
    killed_by = (ZEROED_LATE,)

    _expects = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._expects |= torch.is_grad_enabled() and self.synchronize
        return super().forward(*inputs, **named)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As an optimizer does it."""
        super().zero_grad(set_to_none)
        self._expects = False

    def finish_gradient_synchronization(self) -> None:
        """Averages what is expected."""
        if self._expects:
            super().finish_gradient_synchronization()
        self._expects = False
