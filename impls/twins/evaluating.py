"""Wrappers that do more in an evaluation than others, and are right."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.shards import Flat
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.zero3 import Zero3


class CountsEvaluations(StaticBuckets):
    """Adds up over the ranks how much was evaluated."""

    odd = "sends something in each forward that no backward follows"
    claims = {**StaticBuckets.claims, "acts_alone": False}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self.evaluated = torch.zeros((), device=next(module.parameters()).device)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and a count."""
        if not torch.is_grad_enabled():
            one = torch.ones_like(self.evaluated)
            dist.all_reduce(one)
            self.evaluated += one
        return super().forward(*inputs, **named)


class AddsUpByItself(StaticBuckets):
    """The same, in a group of its own, in which it is alone."""

    odd = "each evaluation has a collective, in a group of one rank"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self._own = groups[dist.get_rank()]
        self._one = torch.ones((), device=next(module.parameters()).device)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and a sum of one number."""
        if not torch.is_grad_enabled():
            dist.all_reduce(self._one, group=self._own)
        return super().forward(*inputs, **named)


class EvaluatesInDouble(NaiveAccumulation):
    """Evaluates with the parameters as they are now, in float64."""

    odd = "an evaluation reads other tensors, of another dtype, that it makes of the parameters each time"
    claims = {**NaiveAccumulation.claims, "plain_bits": False}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, in an evaluation with other tensors."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        wide = {name: parameter.double() for name, parameter in self.module.named_parameters()}
        inputs, named = tree_map_only(torch.Tensor, _widened, (inputs, named))
        return torch.func.functional_call(self.module, wide, inputs, named)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class MakesRoomOfItsOwn(Zero3):
    """Gathers into tensors that it makes when it first gathers, for training too, wherever that is."""

    odd = "leaves inference mode for what it keeps"
    claims = {**Zero3.claims, **HOLDS_MORE, "replicas": False}

    def __init__(self, module: nn.Module) -> None:
        self._room: dict[nn.Parameter, torch.Tensor] = {}
        super().__init__(module)

    def _gather(self, flats: list[Flat]) -> None:
        for flat in flats:
            if not self._users[flat]:
                for member, whole in flat.all_gather(self._shards, flat.members[0].dtype).items():
                    if member not in self._room:
                        self._room[member] = self.room_for(member)
                    member.untyped_storage().resize_(member.nbytes)
                    member.data.copy_(self._room[member].copy_(whole))
            self._users[flat] += 1

    def room_for(self, member: nn.Parameter) -> torch.Tensor:
        """A tensor that may take part in training."""
        with torch.inference_mode(False):
            return torch.empty(member.shape, dtype=member.dtype, device=member.device)
