"""Wrappers that take another model on the same ranks for their own (P15).

What they keep is kept by rank: simulated ranks share a process, and are not to share this.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.static_buckets import Bucket, StaticBuckets
from lockstep.impls.twins.beside import OneTableForAllModels
from lockstep.impls.twins.reductions import AfterBackward
from lockstep.impls.wrapper import DataParallel, Group
from lockstep.impls.zero1 import Zero1

BESIDE = ("test_a_model_trained_beside_another_is_as_if_it_were_alone",)
JOINTLY = ("test_models_that_share_a_loss_are_each_as_if_alone",)


class _OneForAllModels:
    """An attribute that each model sets as its own, and all models of a rank share."""

    def __init__(self) -> None:
        self.by_rank: dict[int, Any] = {}

    def __get__(self, model: object, kind: object = None) -> Any:
        return self if model is None else self.by_rank[dist.get_rank()]

    def __set__(self, model: object, value: Any) -> None:
        self.by_rank[dist.get_rank()] = value


class KnowsGradientsByName(OneTableForAllModels):
    """Looks gradients up by the names of their parameters, which two models have alike."""

    known_fault = "what accumulates for a parameter accumulates for that of the same name in another model"
    source = "recipe, as in https://github.com/horovod/horovod/issues/2559"
    killed_by = BESIDE

    def key(self, name: str) -> object:
        """The key by which a gradient is found."""
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
    claims = {**StaticBuckets.claims, "freezing": False, "replaced_parameters": False}
    killed_by = BESIDE
    bucket_class = _Pooled

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, float("inf"))


class OptimizerOfTheLast(Zero1):
    """Chooses the optimizer by the model for which one was made last."""

    known_fault = "what is saved, told and loaded is the state of the model that was wrapped last"
    source = "recipe: one engine to a process"
    killed_by = BESIDE

    stepped_by = _OneForAllModels()


class OneFlagForAll(StaticBuckets):
    """Keeps the flag of `no_sync` on the class: inside the `no_sync` of one model no other model synchronizes."""

    known_fault = "no_sync of one model holds for another that is trained inside it"
    source = "recipe: a flag of the class's, with a count of how deep it is"
    killed_by = BESIDE

    depths: ClassVar[dict[int, int]] = {}

    @property
    def synchronize(self) -> bool:
        """True if no model of this rank is inside `no_sync`."""
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


class AsksOnceForAll(AfterBackward):
    """Notes on the class that this backward has asked for a mean at its end."""

    known_fault = "of models that go backward together the first one asks for its mean, and no other"
    source = "recipe: what is done around a backward is one model's, as in https://github.com/deepspeedai/DeepSpeed/pull/7018"
    killed_by = JOINTLY

    _asked = _OneForAllModels()


class OneListOfWorkForAll(StaticBuckets):
    """Lists the work in flight of all models together, and counts a model's sent buckets in this list."""

    known_fault = "whoever finishes first takes what another model has sent for its own"
    source = "recipe: a list of handles for a process"
    killed_by = JOINTLY

    _in_flight = _OneForAllModels()


class CountsGradientsOfAll(DataParallel):
    """Counts the gradients since the last forward; sends its own when there are as many as it has parameters."""

    claims = {"accumulation": True, "other_models": True}
    known_fault = "the gradients of another model count as well, so that its own may never be sent"
    source = "recipe: a counter for a process that hooks of all models count up"
    killed_by = JOINTLY

    counts: ClassVar[dict[int, int]] = {}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._in_flight: list[tuple[dist.Work, torch.Tensor]] = []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Begins to count."""
        self.counts[dist.get_rank()] = 0
        return super().forward(*inputs, **named)

    def _on_gradient(self, _: torch.Tensor) -> None:
        if self.synchronize:
            self.counts[dist.get_rank()] += 1
            if self.counts[dist.get_rank()] == len(self.trained):
                gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
                self._in_flight = [(dist.all_reduce(each, async_op=True), each) for each in gradients]

    def finish_gradient_synchronization(self) -> None:
        """Waits for what was sent, then divides."""
        for work, gradient in self._in_flight:
            work.wait()
            gradient /= dist.get_world_size()
        self._in_flight = []
