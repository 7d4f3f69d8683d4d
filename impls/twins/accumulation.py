"""Accumulation that is right in an unusual way."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.end_of_backward import AtTheEndOfBackward
from lockstep.impls.main_grad_buckets import MainGradBuckets


class ZeroesLate(MainGradBuckets):
    """Zeroes main gradients in the forward after `zero_grad`."""

    odd = "what was dropped stays in main gradients until the next forward"
    claims = {**MainGradBuckets.claims, "zeroes_late": False}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._due: list[bool] = []  # for each zero_grad that is still to be done, whether gradients became None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero at once the gradients that the caller can see."""
        nn.Module.zero_grad(self, set_to_none)
        self._due.append(set_to_none)

    def _before_forward(self, *_: Any) -> None:
        for to_none in self._due:
            for bucket in self._buckets:
                bucket.zero(to_none)
        self._due.clear()
        super()._before_forward()


class EachBackwardByItself(AtTheEndOfBackward):
    """Averages at the end of each backward what that one has brought, puts it aside, and hands all out at the end."""

    odd = "between two backwards of a micro-batch there are no gradients"
    claims = {**AtTheEndOfBackward.claims, "replaced_parameters": False}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._means: dict[nn.Parameter, torch.Tensor] = {}

    def on_end(self) -> None:
        """Averages, unless inside `no_sync`."""
        if self.synchronize:
            super().finish_gradient_synchronization()
            for parameter in self.trained:
                if (mean := parameter.grad) is not None:
                    self._means[parameter] = mean + self._means[parameter] if parameter in self._means else mean
                    parameter.grad = None

    def finish_gradient_synchronization(self) -> None:
        """Hands out."""
        for parameter, mean in self._means.items():
            parameter.grad = mean
        self._means.clear()
