"""Sharded training that is right and costs a multiple: of 16 bits, or on replicas (P18)."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.shards import Flat, Reduction
from lockstep.impls.wrapper import add_over_ranks
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import Zero3

PRICE = ("test_an_element_more_costs_what_the_stage_promises",)


class _GathersInFloat32(Flat):
    def all_gather(
        self, pieces: Mapping[nn.Parameter, torch.Tensor], dtype: torch.dtype
    ) -> dict[nn.Parameter, torch.Tensor]:
        return super().all_gather(pieces, torch.promote_types(dtype, torch.float32))


class PublishesMasters(Zero1):
    """Gathers what was stepped in float32, and casts what has arrived: the values are the same."""

    known_fault = "float32 masters are gathered where 16-bit parameters would do"
    source = "recipe: masters published, and cast by whoever gets them"
    killed_by = PRICE
    cut = _GathersInFloat32


class _InFloat32(Reduction):
    def begin(self, sent: torch.Tensor) -> torch.Tensor:
        if sent.itemsize != 2:
            return super().begin(sent)
        wide = sent.float()
        own = wide.new_empty(self.flat.share)
        dist.reduce_scatter_tensor(own, wide, group=self.flat.group)
        return own.to(sent.dtype)


class _InFloat32Flat(Flat):
    reduction = _InFloat32


class ReducesWide(Zero2):
    """Adds gradients of 16 bits up in float32, and claims nothing of the kind."""

    known_fault = "gradients of 16 bits travel as float32, though their own dtype is what is promised"
    source = "recipe: a cast for the reduction that nobody asked for"
    killed_by = PRICE
    cut = _InFloat32Flat


class WholeOverReplicas(Zero3):
    """Adds whole gradients up over replicas, and what comes of it in the shard group."""

    known_fault = "between replicas whole gradients travel, where slices would do"
    source = "recipe: hybrid sharding that all-reduces before it scatters"
    killed_by = PRICE

    def reduce(self, flat: Flat) -> Reduction:
        """Over replicas first."""
        if self._replicas is not None:
            for member in flat.members:
                if member.requires_grad:
                    member.grad = torch.zeros_like(member) if member.grad is None else member.grad
                    add_over_ranks(member.grad, self._replicas)
        return super().reduce(flat)

    def settle(self, reduction: Reduction) -> None:
        """Nothing is left to add up over replicas."""
        replicas, self._replicas = self._replicas, None
        super().settle(reduction)
        self._replicas = replicas
