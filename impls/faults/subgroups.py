"""Wrappers that take a group of ranks and forget it, or take ranks of the world for those of the group."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.shards import Flat
from lockstep.impls.twins.subgroups import InAGroup, ShardsInAGroup
from lockstep.impls.wrapper import Group

MEAN = "test_gradients_equal_the_mean_over_ranks"
START = "test_every_rank_starts_with_the_parameters_of_rank_0"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"
SAME = "test_every_rank_issues_the_same_collectives"


class RootOfTheWorld(InAGroup):
    """Broadcasts from rank 0, which c10d takes for the world's."""

    known_fault = "the initial broadcast names rank 0 of the world, which is no member of the group"
    source = "recipe: K04, a global rank for one of the group"
    killed_by = (START, REPLICAS)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, process_group: Group = None) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, src=0, group=process_group)
        super().__init__(module, bucket_cap_mb, process_group=process_group)


class RootCountedTwice(InAGroup):
    """Looks up which rank of the world is the group's rank 0, and gives it for a rank of the group."""

    known_fault = "the initial broadcast names a rank of the world where one of the group is wanted"
    source = "recipe: K04, a global rank for one of the group"
    killed_by = (START,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, process_group: Group = None) -> None:
        root = dist.get_process_group_ranks(process_group)[0]
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, group=process_group, group_src=root % dist.get_world_size(process_group))
        super().__init__(module, bucket_cap_mb, process_group=process_group)


class DividesByTheWorld(InAGroup):
    """The sum over the group becomes a mean over all ranks there are."""

    known_fault = "the sum over the group is divided by the number of ranks in the world"
    source = "A13 V https://github.com/deepspeedai/DeepSpeed/issues/6545"
    killed_by = (MEAN,)

    def finish_gradient_synchronization(self) -> None:
        """Too small where ranks take no part."""
        begun = self._begun
        super().finish_gradient_synchronization()
        if begun:
            for parameter in self.trained:
                if parameter.grad is not None:
                    parameter.grad *= dist.get_world_size(self.group) / dist.get_world_size()


class ForgetsTheGroupOnce(InAGroup):
    """Asks all ranks of the world, once a synchronization, whether they are there."""

    known_fault = "one collective is of the whole world, for whose other ranks it waits in vain"
    source = "recipe: a collective without group="
    killed_by = (MEAN, SAME)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Before a forward that synchronizes."""
        if self.synchronize and torch.is_grad_enabled():
            dist.all_reduce(torch.zeros(1))
        return super().forward(*inputs, **named)


class CountsBackFromTheLast(InAGroup):
    """Takes the ranks of a group for neighbours, as they are without tensor parallelism."""

    known_fault = "the group's rank 0 is looked for as many ranks before the last as the group has, gaps or not"
    source = "recipe: global ranks counted off, where a group may leave some out in between"
    killed_by = (START, REPLICAS)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, process_group: Group = None) -> None:
        first = dist.get_process_group_ranks(process_group)[-1] - dist.get_world_size(process_group) + 1
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, src=first, group=process_group)
        super().__init__(module, bucket_cap_mb, process_group=process_group)


class _ByDistance(Flat):
    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(members, group)
        self.own(self.share * (dist.get_rank() - dist.get_process_group_ranks(group)[0]))


class SharesByDistance(ShardsInAGroup):
    """Owns the share of as many places as there are ranks between it and the group's first."""

    known_fault = "behind a gap in the group a rank owns the next one's share, and the last owns none"
    source = "recipe: global ranks counted off, where a group may leave some out in between"
    killed_by = ("test_steps_of_shards_are_steps_of_the_whole",)
    cut = _ByDistance
