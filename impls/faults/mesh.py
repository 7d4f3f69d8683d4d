"""Means over two dimensions of ranks, replicas of shards, that go wrong with the shape of the mesh (P2)."""

import torch
import torch.distributed as dist

from lockstep.impls.twins.reductions import TwoLevels
from lockstep.impls.zero3 import Zero3

MEAN = "test_gradients_equal_the_mean_over_ranks"
LOCAL_ALONE = "test_what_was_used_only_inside_no_sync_is_synchronized"
MESH = "test_the_shape_of_the_mesh_does_not_matter"


class DivisorSkippedForShardsOfOne(TwoLevels):
    """Divides with the reduction among shards, for which a group of one takes a shortcut."""

    known_fault = "where every shard group has one rank, nothing is divided"
    source = "A03 V https://github.com/pytorch/pytorch/pull/167178"
    killed_by = (MEAN, MESH)

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """The shortcut leaves the divisor out."""
        total = super().mean(local)
        return total * dist.get_world_size() if self.size == 1 else total


class ShardsOfOneStayLocal(TwoLevels):
    """Takes a mesh of n replicas of one shard for no sharding at all."""

    known_fault = "replicas that each fit on one rank are never all-reduced"
    source = "A04 D https://github.com/pytorch/pytorch/issues/154888"
    killed_by = (MEAN, MESH)

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Nothing to shard, nothing to send."""
        return local.clone() if self.size == 1 else super().mean(local)


class DividesByTheInnerGroup(TwoLevels):
    """Divides by the size of one group."""

    known_fault = "the sum over all ranks is divided by the number of ranks in one group"
    source = "A13 V https://github.com/deepspeedai/DeepSpeed/issues/6545"
    killed_by = (MEAN, MESH)

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Too large by the number of groups."""
        return super().mean(local) * self.replicas


class WhatWasNotCalledStaysInItsReplica(Zero3):
    """Reduces late gradients, after backward, in another place than the rest."""

    known_fault = "units that were called inside no_sync alone are not reduced over replicas"
    source = "recipe: two places that reduce, of which one knows of replicas"
    killed_by = (LOCAL_ALONE,)

    def finish_gradient_synchronization(self) -> None:
        """Reduces what belongs to units that were not called."""
        replicas, self._replicas = self._replicas, None
        super().finish_gradient_synchronization()
        self._replicas = replicas
