"""Training loops with Lightning Fabric, by micro-batches and by tokens. They need the package lightning-fabric.

"Gradient accumulation works the same way with Fabric as in PyTorch": the loop divides, and Fabric averages over ranks.
https://lightning.ai/docs/fabric/stable/advanced/gradient_accumulation.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.impls.frameworks.fabric_data import fabric
from lockstep.impls.training_loop import Batch


class FabricLoop:
    """With `no_backward_sync`, `clip_gradients` and `all_reduce`; the mean over each micro-batch."""

    # Fabric skips no step. A norm that is not finite raises: `error_if_nonfinite` of `clip_gradients`.
    claims: Mapping[str, Any] = {"loop": True, "loss_mean": "micro-batch"}
    why: Mapping[str, str] = {
        "loop": "`no_backward_sync`, `clip_gradients` and `all_reduce` are Fabric's",
        "loss_mean": "the loop is the caller's: the mean over each micro-batch",
    }

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None, max_norm: float | None = None
    ) -> None:
        self.fabric = fabric()
        self.model, self.optimizer = self.fabric.setup(model, optimizer)
        self.scheduler, self.max_norm = scheduler, max_norm

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The divisor of the summed losses of each micro-batch."""
        return [mask.sum().clamp(min=1) * len(masks) for mask in masks]

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float | None, float]:
        """One step."""
        parts, last = [], len(micro_batches) - 1
        divisors = self.divisors([mask for _, mask in micro_batches])
        for place, ((inputs, mask), divisor) in enumerate(zip(micro_batches, divisors, strict=True)):
            with self.fabric.no_backward_sync(self.model, enabled=place < last):
                part = (self.model(inputs) * mask).sum() / divisor
                self.fabric.backward(part)
                parts.append(part.detach())
        norm = None
        if self.max_norm is not None:
            norm = float(self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.max_norm))
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return float(self.fabric.all_reduce(torch.stack(parts).sum(), reduce_op="mean")), norm, rate


class FabricTokens(FabricLoop):
    """The mean over all tokens of the window, which `all_reduce` counts."""

    claims: Mapping[str, Any] = {"loop": True, "loss_mean": "tokens"}
    why: Mapping[str, str] = {
        "loop": "`no_backward_sync`, `clip_gradients` and `all_reduce` are Fabric's",
        "loss_mean": "the loop is the caller's: `all_reduce` counts the tokens of the window",
    }

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All tokens, for each rank's part of a mean over ranks."""
        tokens = self.fabric.all_reduce(torch.stack([mask.sum() for mask in masks]).sum(), reduce_op="sum")
        return [tokens.clamp(min=1) / self.fabric.world_size] * len(masks)
