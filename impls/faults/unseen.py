"""Sharded training that is right where somebody looks at it, and wrong where nobody does (P10)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.shards import Flat
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import Zero3

UNSEEN = ("test_what_nobody_looks_at_is_trained_all_the_same",)


class SettlesForThoseWhoAsk(Zero2):
    """Leaves its last reduction under way: all who ask for gradients wait for it, but for clipping."""

    known_fault = "the norm leaves out gradients that are still under way, unless somebody has looked at them"
    source = "recipe: overlap the last reduction with what comes next"
    claims = {**Zero2.claims, **HOLDS_MORE}
    killed_by = UNSEEN

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._settle()
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        while self._to_send:
            self._send(self._to_send.pop(0))

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        self._settle()
        return super().full_gradients()

    def unscale_(self, scale: float) -> bool:
        self._settle()
        return super().unscale_(scale)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._settle()
        super().zero_grad(set_to_none)

    def make_optimizer(self, *arguments: Any, **named: Any) -> Any:
        optimizer = super().make_optimizer(*arguments, **named)
        step = optimizer.step

        def settled() -> None:
            self._settle()
            step()

        optimizer.step = settled
        return optimizer


class GathersForThoseWhoAsk(Zero1):
    """Gathers what others have stepped when somebody evaluates or asks for parameters, but not for training."""

    known_fault = "every rank trains on with old values of what others have stepped, unless somebody has looked"
    source = "recipe: gather stepped parameters when they are asked for"
    claims = {**Zero1.claims, **HOLDS_MORE, "strided_parameters": False}
    killed_by = UNSEEN

    _stale = False

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        for member, piece in stepped.items():
            self.values(member).copy_(piece)
        self._stale = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            self._refresh()
        return super().forward(*inputs, **named)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        self._refresh()
        return super().full_parameters()

    def _refresh(self) -> None:
        if self._stale:
            self._stale = False
            super().publish({member: self.values(member) for member in self.flat_of})


class KeepsWhatIsGathered(Zero3):
    """Keeps parameters whole once they are gathered, until somebody asks for them."""

    known_fault = "parameters are gathered once and used for ever, unless somebody looks"
    source = "recipe: leave parameters gathered from one forward to the next"
    claims = {**Zero3.claims, **HOLDS_MORE}
    killed_by = UNSEEN

    _kept: frozenset[Flat] = frozenset()

    def _gather(self, flats: list[Flat]) -> None:
        for flat in flats:
            if flat in self._kept:
                self._users[flat] += 1
            else:
                super()._gather([flat])
                self._kept |= {flat}

    def _free(self, flat: Flat) -> None:
        if flat not in self._kept:
            super()._free(flat)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        self._kept = frozenset(flat for flat in self._kept if self._users[flat])
        for flat in self.flats:
            if not self._users[flat]:
                self._free(flat)
        return super().full_parameters()
