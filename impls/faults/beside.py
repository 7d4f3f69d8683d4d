"""Wrappers that take another model on the same ranks for their own (P15).

What they keep is kept by rank: simulated ranks share a process, and are not to share this.
"""

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import torch.distributed as dist
from torch import nn

from impls.sharded_optimizer import ShardedOptimizer
from impls.static_buckets import Bucket, StaticBuckets
from impls.twins.beside import OneTableForAllModels
from impls.wrapper import Group
from impls.zero1 import Zero1

BESIDE = ("test_a_model_trained_beside_another_is_as_if_it_were_alone",)


class KnowsGradientsByName(OneTableForAllModels):
    """Looks gradients up by the names of their parameters, which two models have alike."""

    known_fault = "what accumulates for a parameter accumulates for that of the same name in another model"
    source = "recipe, as in https://github.com/horovod/horovod/issues/2559"
    killed_by = BESIDE

    def key(self, name: str) -> object:
        """What a gradient is found by."""
        return dist.get_rank(), name


class _Pooled(Bucket):
    """Has the memory of the first bucket whose members had the same shapes and dtypes."""

    pool: ClassVar[dict[object, "_Pooled"]] = {}

    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(members, group)
        first = self.pool.setdefault((dist.get_rank(), *((each.shape, each.dtype) for each in members)), self)
        self.buffer, self.elements, self.flags = first.buffer, first.elements, first.flags
        self.views = dict(zip(members, first.views.values(), strict=True))


class PoolsBuckets(StaticBuckets):
    """One bucket to a dtype, whose memory comes from a pool that does not know when it is free."""

    known_fault = "buckets, of which gradients are views, lie in the memory of another model's"
    source = "recipe: communication buffers that are kept for all models"
    claims = {**StaticBuckets.claims, "freezing": False, "replaces": False}
    killed_by = BESIDE
    bucket_class = _Pooled

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, float("inf"))


class OptimizerOfTheLast(Zero1):
    """The optimizer is that of the model for which one was made last."""

    known_fault = "what is saved, told and loaded is the state of the model that was wrapped last"
    source = "recipe: one engine to a process"
    killed_by = BESIDE

    last: ClassVar[dict[int, ShardedOptimizer | None]] = {}

    @property
    def optimizer(self) -> ShardedOptimizer | None:
        """That of any model of this rank."""
        return self.last[dist.get_rank()]

    @optimizer.setter
    def optimizer(self, made: ShardedOptimizer | None) -> None:
        self.last[dist.get_rank()] = made


class OneFlagForAll(StaticBuckets):
    """Whether gradients are synchronized is the class's: inside the `no_sync` of one model no other synchronizes."""

    known_fault = "no_sync of one model holds for another that is trained inside it"
    source = "recipe: a flag of the class's, with a count of how deep it is"
    killed_by = BESIDE

    depths: ClassVar[dict[int, int]] = {}

    @property
    def synchronize(self) -> bool:
        """Whether no model of this rank is inside `no_sync`."""
        return not self.depths.get(dist.get_rank())

    @synchronize.setter
    def synchronize(self, on: bool) -> None:
        pass

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Counts how many there are."""
        rank = dist.get_rank()
        self.depths[rank] = self.depths.get(rank, 0) + 1
        try:
            yield
        finally:
            self.depths[rank] -= 1
