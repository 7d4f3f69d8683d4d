"""Synchronizers that need all ranks for what one rank may do alone: evaluate the model, and save it (P5)."""

from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets

ALONE = "test_what_one_rank_does_alone_leaves_all_in_step"


class BroadcastsBuffersToEvaluate(StaticBuckets):
    """Makes sure that all ranks evaluate with rank 0's buffers."""

    known_fault = "a rank that evaluates alone sends its buffers, and nobody takes them"
    source = "M05 V https://github.com/pytorch/pytorch/issues/54059"
    killed_by = (ALONE,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not self.training:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        return super().forward(*inputs, **named)


class AsksWhetherAllAreThere(NaiveAccumulation):
    """Puts a barrier around what is collected for a file."""

    known_fault = "a rank that takes the state dict alone waits for the others"
    source = "recipe: a barrier in state_dict"
    killed_by = (ALONE,)

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Of the whole."""
        dist.barrier()
        return super().state_dict(*args, **named)


class WaitsWhereTheModeChanges(NaiveAccumulation):
    """Has all ranks begin an epoch, or a validation, together."""

    known_fault = "a rank that goes over to evaluation alone waits for the others"
    source = "recipe: a barrier in train"
    killed_by = (ALONE,)

    def train(self, mode: bool = True) -> Self:
        """Together."""
        if mode is not self.training:
            dist.barrier()
        return super().train(mode)


class TurnsRoundEveryOtherForward(NaiveAccumulation):
    """Begins with the last parameter and with the first in turn, so that neither is always late."""

    known_fault = "after an evaluation on one rank alone, that one reduces what the others do not"
    source = "recipe: a count of forwards that decides what is sent, and counts those of evaluations"
    killed_by = (ALONE,)

    _forwards = 0

    @property
    def trained(self) -> list[nn.Parameter]:
        """In the order of which it is the turn."""
        return super().trained[:: -1 if self._forwards % 2 else 1]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        self._forwards += 1
        return super().forward(*inputs, **named)


class AveragesWhatItEvaluates(NaiveAccumulation):
    """Tells the mean over all ranks of what an evaluation gives."""

    known_fault = "a rank that evaluates alone adds its result to whatever the others send next"
    source = "recipe: a reduction of the loss in the forward of the wrapper, when there is no autograd"
    killed_by = (ALONE,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and maybe a mean."""
        result = super().forward(*inputs, **named)
        if not torch.is_grad_enabled():
            dist.all_reduce(result)
            result = result / dist.get_world_size()
        return result
