"""Accumulation that is right in an unusual way."""

from typing import Any

from torch import nn

from impls.main_grad_buckets import MainGradBuckets


class ZeroesLate(MainGradBuckets):
    """Zeroes main gradients in the forward after `zero_grad`."""

    odd = "what was dropped stays in main gradients until the next forward"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._due: list[bool] = []  # for each zero_grad that is still to be done, whether gradients became None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """What the caller can see is zeroed at once."""
        nn.Module.zero_grad(self, set_to_none)
        self._due.append(set_to_none)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Does what is due first."""
        for to_none in self._due:
            for bucket in self._buckets:
                bucket.zero(to_none)
        self._due.clear()
        return super().forward(*inputs, **named)
