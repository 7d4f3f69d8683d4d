"""Checkpoints that are saved and loaded in an unusual but right way."""

import copy
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.zero1 import Zero1


class OnlyRankZeroReads(Zero1):
    """Rank 0 alone believes what it is told to load; it broadcasts that to the others, name by name, backwards."""

    odd = "the other ranks load what rank 0 broadcasts, whatever they were given"

    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """See `properties.sharded.Sharded`."""
        states = None
        if optimizer_state is not None:
            states = {name: self._from_rank_zero(optimizer_state[name]) for name in sorted(optimizer_state)[::-1]}
        super().load_full(self._from_rank_zero(parameters), states)

    def _from_rank_zero(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        received = {name: given[name].clone() for name in sorted(given)[::-1]}
        if dist.get_rank():
            for tensor in received.values():
                tensor.fill_(torch.nan)
        for tensor in received.values():
            dist.broadcast(tensor, src=0)
        return received


class SavesInTheBackground(Zero1):
    """Copies what is saved, and hands out handles that are waited for later."""

    odd = "what saves returns handles, and the values are those of before"

    def full_parameters(self) -> Any:
        """A handle; see `properties.sharded.Sharded`."""
        found = {name: values.clone() for name, values in super().full_parameters().items()}
        return SimpleNamespace(wait=lambda: found)

    def full_optimizer_state(self) -> Any:
        """A handle; see `properties.sharded.Sharded`."""
        found = copy.deepcopy(super().full_optimizer_state())
        return SimpleNamespace(result=lambda: found)


class BeginsAnewToLoad(Zero1):
    """Makes the optimizer of the shards anew before it loads, so that nothing of the old one can stay."""

    odd = "another optimizer, with groups of its own, takes up what is loaded"

    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """See `properties.sharded.Sharded`."""
        if self.optimizer is not None:
            old = self.optimizer.inner
            self.optimizer.inner = type(old)([dict(group) for group in old.param_groups], lr=1.0)  # each has its own
        super().load_full(parameters, optimizer_state)


class DrawsWhileItLoads(Zero1):
    """Fills tensors with random numbers before it loads, as a model that is made anew does."""

    odd = "loading draws random numbers, and then gives each rank's generators their own states back"

    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """See `properties.sharded.Sharded`."""
        kept = torch.get_rng_state(), random.getstate()
        random.seed(dist.get_rank())
        for parameter in self.module.parameters():
            torch.rand_like(parameter, dtype=torch.float32)
        super().load_full(parameters, optimizer_state)
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
