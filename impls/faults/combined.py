"""Trainers that are right with each feature of a program alone, and wrong where two of them meet (P1)."""

from collections.abc import Iterable

import torch
from torch import nn

from lockstep.impls.faults.accumulation import TOGETHER
from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer


class ClipsTheFirstGroup(StaticBucketsTrainer):
    """Takes the norm of all gradients, and scales those of the first parameter group."""

    known_fault = "where there are several parameter groups, clipping scales the gradients of one"
    source = "recipe"
    killed_by = (TOGETHER, "test_clipping_scales_every_gradient_by_one_factor")

    def scale_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
        """Of what the optimizer lists first."""
        first = set(self.optimizer.param_groups[0]["params"])
        names = [name for name, held in self.optimizer.held.items() if held in first]
        super().scale_gradients([self.optimizer.named[name] for name in names], max_norm, norm)


class _CountsSteps(MasterOptimizer):
    steps = 0

    def step(self) -> None:
        super().step()
        self.steps += 1


class UnscalesOnceAStep(StaticBucketsTrainer):
    """Unscales gradients at most once between two steps, as a scaler should, and counts the steps that were taken."""

    known_fault = "after a step that an overflow has skipped, the next gradients are not unscaled"
    source = "recipe"
    killed_by = (TOGETHER, "test_ranks_agree_on_overflows_and_on_the_loss_scale")
    optimizer_class = _CountsSteps
    optimizer: _CountsSteps
    _unscaled_at = -1

    def unscale_(self, scale: float) -> bool:
        """Looks whether all are finite, in any case."""
        if self._unscaled_at == self.optimizer.steps:
            return super().unscale_(1.0)
        self._unscaled_at = self.optimizer.steps
        return super().unscale_(scale)
