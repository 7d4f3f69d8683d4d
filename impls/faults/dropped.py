"""Synchronizers that give back what the caller has zeroed or dropped (P3)."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.faults.accumulation import AFTER_AN_ERROR
from lockstep.impls.main_grad_buckets import MainGradBuckets
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets

DROPPED = "test_a_window_that_is_dropped_halfway_leaves_no_trace"
ZEROED = "test_zeroed_gradients_do_not_come_back"


class ZeroedBufferComesBack(StaticBuckets):
    """Keeps the last means and starts from them, unless gradients were dropped; zeroing the gradient zeroes a copy."""

    known_fault = "gradients that were zeroed in place come back with the next backward"
    source = "systems: zeroing in place what aliases another buffer"
    killed_by = (ZEROED,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._means: dict[nn.Parameter, torch.Tensor] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Takes up the means where a gradient is there."""
        for parameter, mean in self._means.items():
            if parameter.grad is not None:
                parameter.grad = mean
        self._means.clear()
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Hands out copies."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None:
                self._means[parameter], parameter.grad = parameter.grad, parameter.grad.clone()


class KeepsWhatWasDropped(MainGradBuckets):
    """Accumulates where the caller cannot see it, and does not hear of zero_grad."""

    known_fault = "what the caller drops before it is averaged, by itself or after an error, is kept in main gradients"
    source = "recipe: drop a window of accumulation halfway; raise inside backward, then train on"
    killed_by = (DROPPED, AFTER_AN_ERROR)

    zero_grad = nn.Module.zero_grad


class ZeroesWhatIsSeen(MainGradBuckets):
    """Takes zeroing in place for a matter of ``.grad``."""

    known_fault = "zero_grad(set_to_none=False) leaves main gradients as they are"
    source = "recipe: drop a window of accumulation halfway"
    killed_by = (DROPPED,)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of main gradients too, where they are dropped."""
        (super().zero_grad if set_to_none else super(MainGradBuckets, self).zero_grad)(set_to_none)


class SetsAveragesApart(NaiveAccumulation):
    """Sets averages apart while more accumulates, and adds them again when that is averaged, as torch's FSDP1 does."""

    known_fault = "averages of before a local micro-batch come back although gradients were zeroed after it"
    source = "recipe: drop a window of accumulation halfway"
    killed_by = (DROPPED,)

    _averaged = False  # whether gradients are averages, and nothing has been added

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._apart: dict[nn.Parameter, torch.Tensor] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Begins with gradients of its own."""
        if self._averaged and torch.is_grad_enabled():
            self._averaged = False
            for parameter in self.trained:
                if parameter.grad is not None:
                    self._apart[parameter], parameter.grad = parameter.grad, None
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Adds what was set apart."""
        super().finish_gradient_synchronization()
        for parameter, average in self._apart.items():
            parameter.grad = average if parameter.grad is None else average + parameter.grad
        self._apart.clear()
        self._averaged = True


class UsedThoughDropped(StaticBuckets):
    """Notes which parameters were used since the last synchronization, and gives each of them a gradient."""

    known_fault = "a parameter used only in a window that was dropped gets zeros where no rank has a gradient for it"
    source = "recipe: drop a window of accumulation halfway; related: pytorch/pytorch#69031"
    killed_by = (DROPPED,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._used: set[nn.Parameter] = set()

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._used.add(parameter)
        super()._on_gradient(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Take zeros for the mean of a parameter without a gradient."""
        super().finish_gradient_synchronization()
        for parameter in self._used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._used.clear()
