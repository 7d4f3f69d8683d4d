"""Wrappers that take every forward for the first half of a micro-batch (P5)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from impls.naive import NaiveAccumulation
from impls.static_buckets import StaticBuckets
from impls.zero3 import Call, Zero3

IN_STEP = ("test_a_forward_without_a_backward_leaves_all_in_step",)


class CountsForwards(StaticBuckets):
    """Takes a second forward before the end of a synchronization for an error, and does not synchronize."""

    known_fault = "forwards are counted where backwards are meant"
    source = "B22 V https://github.com/pytorch/pytorch/issues/58111"
    killed_by = IN_STEP
    forwards = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Counts."""
        self.forwards += self.synchronize
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Only what one forward has begun."""
        if self.forwards == 1:
            super().finish_gradient_synchronization()
        self.forwards = 0


class KeepsWhatItEvaluatedWith(Zero3):
    """Leaves parameters gathered after a forward without autograd, and uses them in the next one."""

    known_fault = "parameters that were gathered for an evaluation are used after they have been stepped"
    source = "systems: FSDP1 of torch 2.11 to 2.14, FSDP2 of 2.13, properties/FINDINGS.md"
    killed_by = IN_STEP

    def _after_forward(self, call: Call, outputs: Any) -> None:
        if torch.is_grad_enabled():
            super()._after_forward(call, outputs)


class RankZeroEvaluates(NaiveAccumulation):
    """Adds up over the ranks how much was evaluated, and only rank 0 asks."""

    known_fault = "a metric of an evaluation is reduced on rank 0 alone"
    source = "recipe"
    killed_by = IN_STEP

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.device = next(module.parameters()).device

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and a count."""
        if not self.training and dist.get_rank() == 0:
            dist.all_reduce(torch.ones((), device=self.device))
        return super().forward(*inputs, **named)
