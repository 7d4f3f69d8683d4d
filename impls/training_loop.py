"""A training loop: one optimizer step for a window of micro-batches on each rank.

A micro-batch is its inputs and a mask, which is 1 for each token that counts. The model gives a loss for each token.
Each micro-batch is divided before its backward, so that summing over micro-batches and ranks gives the mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


def summed(value: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


class TrainingLoop:
    """The mean over all tokens of the window and of all ranks. A step whose gradient is not finite is skipped."""

    claims: Mapping[str, Any] = {"loop": True, "skips_overflow": True}

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None, max_norm: float | None = None
    ) -> None:
        self.model, self.optimizer, self.scheduler, self.max_norm = model, optimizer, scheduler, max_norm

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The divisor of the summed losses of each micro-batch: all tokens of the window."""
        total = summed(torch.stack([mask.sum() for mask in masks]).sum())
        return [total] * len(masks)

    def gradients(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        """Leaves this rank's part of the gradients, and returns its part of the loss."""
        parts = []
        for (inputs, mask), divisor in zip(
            micro_batches, self.divisors([mask for _, mask in micro_batches]), strict=True
        ):
            part = (self.model(inputs) * mask).sum() / divisor.clamp(min=1)
            part.backward()
            parts.append(part.detach())
        return torch.stack(parts).sum()

    def reduce(self) -> None:
        """Adds the parts of all ranks."""
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        """One step; the loss before it, the norm before clipping, and the learning rate of the step."""
        self.optimizer.zero_grad()
        loss = summed(self.gradients(micro_batches))
        self.reduce()
        limit = float("inf") if self.max_norm is None else self.max_norm
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        rate = self.optimizer.param_groups[0]["lr"]
        if norm.isfinite():
            self.optimizer.step()
            self.advance(micro_batches)
        return float(loss), float(norm), rate

    def advance(self, micro_batches: Sequence[Batch]) -> None:
        """Goes on in the schedule."""
        if self.scheduler is not None:
            self.scheduler.step()


class PerRank(TrainingLoop):
    """The mean over ranks of the mean over each rank's tokens."""

    claims: Mapping[str, Any] = {**TrainingLoop.claims, "loss_mean": "rank"}

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's tokens, times the number of ranks."""
        own = torch.stack([mask.sum() for mask in masks]).sum()
        return [own * dist.get_world_size()] * len(masks)


class PerMicroBatch(TrainingLoop):
    """The mean over ranks and micro-batches of the mean over each micro-batch's tokens."""

    claims: Mapping[str, Any] = {**TrainingLoop.claims, "loss_mean": "micro-batch"}

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Each one's tokens, times the numbers of micro-batches and ranks."""
        return [mask.sum() * len(masks) * dist.get_world_size() for mask in masks]
