"""Naive data parallelism with a callback at the end of each backward, a base for algorithms that act then."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lockstep.impls.naive import NaiveAccumulation


class AtTheEndOfBackward(NaiveAccumulation):
    """Calls `on_end` at the end of each backward, by hooks on the outputs of forward."""

    claims = {
        **NaiveAccumulation.claims,
        "direct_forwards": False,
        "survives_errors": False,
        "output_classes": False,
        "in_place": False,
        "double_backward": False,
    }

    _heard = False  # whether this backward has been heard of

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        output = super().forward(*inputs, **named)
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._on_backward)
        return output

    def _on_backward(self, _: torch.Tensor) -> None:
        if not self._heard:
            self._heard = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._heard = False
        self.on_end()

    def on_end(self) -> None:
        """Called when backward is over."""
