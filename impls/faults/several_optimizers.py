"""Sharded optimizers with one known fault each, where a model has several, each of some parameters (P11, P12)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.impls.sharded import ShardedDataParallel
from lockstep.impls.sharded_optimizer import ShardedOptimizer
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2

WEIGHTS_ALONE = "test_loading_weights_alone_makes_the_masters_follow"
SEVERAL = ("test_each_of_several_optimizers_steps_its_own_parameters",)


class OneCounter(Zero1):
    """Counts the steps of the model, whichever optimizer takes them."""

    known_fault = "every step of one optimizer counts for all, and biases are corrected that it has not changed"
    source = "recipe: a counter for each group that is stepped in parts, as in deepspeedai/DeepSpeed#1823"
    killed_by = SEVERAL

    steps = 0

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """And counts."""
        super().publish(stepped)
        self.steps += 1
        for parameter, optimizer in self.stepped_by.items():
            if "step" in (state := optimizer.state(parameter)):
                state["step"].fill_(self.steps)


class FreesGradients(Zero2):
    """Frees all gradients as soon as an optimizer has stepped."""

    known_fault = "the step of one optimizer frees the gradients of all, and the next one finds none"
    source = "recipe: shards of gradients that are freed by the step, to save their memory"
    killed_by = SEVERAL
    claims = {**Zero2.claims, "outlive_steps": False}

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """And drops them."""
        super().publish(stepped)
        self.zero_grad()


class KnowsTheLast(Zero1):
    """Saves and loads the state of one optimizer: that which was made last."""

    known_fault = "the state of all optimizers but the last is neither told nor loaded"
    source = "recipe: an attribute for the optimizer"
    killed_by = SEVERAL

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], *given: Any, **defaults: Any
    ) -> ShardedOptimizer:
        """And forgets those of before."""
        self.stepped_by.clear()
        return super().make_optimizer(kind, groups, *given, **defaults)


class PublishesWhatItKnew(Zero1):
    """Each optimizer keeps what it published last of a bucket, and writes its own new elements into that."""

    known_fault = "what another optimizer has stepped in the same bucket goes back to what it was before"
    source = "recipe: an optimizer with a flat buffer of its own for each bucket"
    killed_by = SEVERAL

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], *given: Any, **defaults: Any
    ) -> ShardedOptimizer:
        """With buffers of its own."""
        optimizer = super().make_optimizer(kind, groups, *given, **defaults)
        optimizer._owner = _Buffers(self)
        return optimizer


class _Buffers:
    """One optimizer's view of the parameters."""

    def __init__(self, owner: ShardedDataParallel) -> None:
        self._owner = owner
        self.means, self.values = owner.means, owner.values
        self._known: dict[nn.Parameter, torch.Tensor] = {}

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """All members of the buckets in which something was stepped."""
        for flat in self._owner.flats:
            if any(member in stepped for member in flat.members):
                for member in flat.members:
                    new = stepped.get(member, self._known.get(member, self.values(member)))
                    self._known[member] = new.clone()
        self._owner.publish(self._known)


class MastersOfTheLastFollow(Zero1):
    """After weights are loaded alone, the masters of the optimizer that was made last are made anew."""

    known_fault = "of several optimizers, the masters of one alone follow weights that were loaded"
    source = "recipe: an attribute for the optimizer, where there may be several"
    killed_by = (WEIGHTS_ALONE,)

    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """The others keep what they have."""
        first = {each: each.detach().clone() for each in self._masters_of_others()}
        super().load_full(parameters, optimizer_state)
        if optimizer_state is None:
            for master, values in first.items():
                master.data.copy_(values)

    def _masters_of_others(self) -> list[nn.Parameter]:
        others = {optimizer for optimizer in self.stepped_by.values() if optimizer is not self.optimizer}
        return [master for optimizer in others for master in optimizer.masters.values()]
