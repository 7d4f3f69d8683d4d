"""Twins that train on a given group of ranks of a larger world, whose rank 0 need not be a member."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.wrapper import Group
from lockstep.impls.zero1 import Zero1


class InAGroup(StaticBuckets):
    """Claims what it takes."""

    odd = "every collective is one of the group that the constructor is given"
    claims = {**StaticBuckets.claims, "subgroups": True}


class ShardsInAGroup(Zero1):
    """The same of optimizer state in shards."""

    odd = "optimizer state is cut over the group that the constructor is given"
    claims = {**Zero1.claims, "subgroups": True}


class GroupOfItsOwn(StaticBuckets):
    """Makes another group of the same ranks, as whoever wants no other traffic in theirs."""

    odd = "makes a group of the ranks of the one it is given, and uses no other"
    claims = {**StaticBuckets.claims, "subgroups": True}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, group: Group = None) -> None:
        ranks = dist.get_process_group_ranks(group)
        own = dist.new_group(ranks, use_local_synchronization=True)  # those outside know nothing of it
        super().__init__(module, bucket_cap_mb, process_group=own)


class AddsUpInAGroup(NaiveAccumulation):
    """Gathers the gradients of the group, and adds them up itself."""

    odd = "no reduction: an all-gather in the group that the constructor is given by keyword"
    claims = {**NaiveAccumulation.claims, "subgroups": True}

    def __init__(self, module: nn.Module, *, process_group: Group = None) -> None:
        super().__init__(module, process_group)

    def finish_gradient_synchronization(self) -> None:
        """In the order of the group's ranks."""
        for parameter in self.trained if self.synchronize else ():
            if parameter.grad is not None:
                own = parameter.grad.contiguous()
                parts = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
                dist.all_gather(parts, own, group=self.group)
                parameter.grad.copy_(sum(parts[1:], parts[0]) / len(parts))
