"""Sharded optimizers as people write them, right and wrong; no test of theirs has an adapter."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from lockstep.impls.owned_parameters import OwnedParameters


class Lion(torch.optim.Optimizer):
    """The user's own plain optimizer."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                moment = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (moment * first + p.grad * (1 - first)).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                moment.mul_(second).add_(p.grad, alpha=1 - second)
        return loss


class Coursework(torch.optim.Optimizer):
    """As coursework has it: parameters go to ranks in turn, the step is followed by broadcasts. No other method."""

    def __init__(self, params: Any, optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any) -> None:
        self.optimizer_cls, self.kwargs = optimizer_cls, kwargs
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.everything: list[nn.Parameter] = []
        self.optimizer: Any = None
        super().__init__(params, kwargs)

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        loss = self.optimizer.step(closure, **kwargs) if self.optimizer is not None else None
        for place, parameter in enumerate(self.everything):
            dist.broadcast(parameter.data, src=place % self.world_size)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        begin = len(self.everything)
        self.everything += group["params"]
        mine = [p for place, p in enumerate(group["params"], begin) if place % self.world_size == self.rank]
        if not mine:
            return
        own = {**group, "params": mine}
        if self.optimizer is None:
            self.optimizer = self.optimizer_cls([own], **self.kwargs)
        else:
            self.optimizer.add_param_group(own)


class OfMuonAndOthers(OwnedParameters):
    """Shards whole parameters, so that any class will do."""

    claims = {
        "optimizers": (
            torch.optim.Muon,
            torch.optim.Adafactor,
            torch.optim.RMSprop,
            torch.optim.Adagrad,
            Lion,
        )
    }


class DistributedLion(Lion):
    """Shards its own rule, so that it takes no class: each rank steps its own parameters, and broadcasts them."""

    claims: Any = {"optimizers": (Lion,)}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        everything = [p for group in self.param_groups for p in group["params"]]
        kept = {p: p.grad for p in everything}
        for place, p in enumerate(everything):
            if place % dist.get_world_size() != dist.get_rank():
                p.grad = None
        loss = super().step(closure)
        for place, p in enumerate(everything):
            p.grad = kept[p]
            dist.broadcast(p.data, src=place % dist.get_world_size())
        return loss


class DistributedLionOfOneRank(DistributedLion):
    """Rank 0 sends what it has not stepped."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super().step(closure)
        for p in (p for group in self.param_groups for p in group["params"]):
            dist.broadcast(p.data, src=dist.get_world_size() - 1)
            p.data.mul_(1.5)
        return loss


class SaysNotWhoseRule(DistributedLion):
    claims = None


class NeedsARank(OwnedParameters):
    """Cannot be made of parameters and a class."""

    def __init__(self, params: Any, optimizer_cls: Any, rank: int, **defaults: Any) -> None:
        super().__init__(params, optimizer_cls, **defaults)


class NoOptimizerOfTorchs:
    """Has what an optimizer has, and is none: no scheduler takes it."""

    def __init__(self, parameters: Any, base_optimizer: Any, lr: float) -> None:
        self._owned = OwnedParameters(parameters, base_optimizer, lr=lr)
        self.param_groups = self._owned.param_groups

    def step(self) -> None:
        self._owned.step()

    def zero_grad(self) -> None:
        self._owned.zero_grad()


def in_turn(params: Any, optim_cls: Any, **options: Any) -> torch.optim.Optimizer:
    """A function that makes one."""
    return OwnedParameters(params, optim_cls, **options)


with_a_keyword = functools.partial(OwnedParameters, maximize=False)
of_torch = ZeroRedundancyOptimizer


class AveragesItself(OwnedParameters):
    """Says nothing of taking the mean in its step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in self.owners:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        super().step()
        return loss


class NeedsOneEach(OwnedParameters):
    """No rank may have nothing to step."""

    claims: Any = {"parameters_per_rank": 1}

    def __init__(self, params: Any, optimizer_cls: Any, **defaults: Any) -> None:
        super().__init__(params, optimizer_cls, **defaults)
        if len(self.owners) < dist.get_world_size():
            raise ValueError("optimizer got an empty parameter list")


class NeedsOneEachUnasked(NeedsOneEach):
    """And says nothing of it."""

    claims = None


class NeverBroadcasts(OwnedParameters):
    """Each rank steps its own, and nobody hears of it."""

    def publish(self, parameters: Any) -> None: ...


class BroadcastsFirst(OwnedParameters):
    """What is sent is what was there before the step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.publish(self.owners)
        self.hand_on()
        assert self.local is not None
        return self.local.step(closure)


class StepsItsOwnGradients(OwnedParameters):
    """Keeps the gradients that backward made on this rank, and steps with those."""

    def __init__(self, params: Any, optimizer_cls: Any, **defaults: Any) -> None:
        super().__init__(params, optimizer_cls, **defaults)
        self.kept: dict[nn.Parameter, torch.Tensor] = {}
        for parameter in (each for each in self.owners if each.requires_grad):
            parameter.register_post_accumulate_grad_hook(self.keep)

    def keep(self, parameter: Any) -> None:
        self.kept[parameter] = parameter.grad.clone()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for parameter, gradient in self.kept.items():
            if parameter.grad is not None:
                parameter.grad.copy_(gradient)
        return super().step(closure)


class ZeroesItsOwn(OwnedParameters):
    """Zeroes the gradients of what this rank steps."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert self.local is not None
        self.local.zero_grad(set_to_none)


class SavesTheGroupsAlone(OwnedParameters):
    """Has torch's own `state_dict`, which knows nothing of the optimizer inside."""

    state_dict = torch.optim.Optimizer.state_dict
    load_state_dict = torch.optim.Optimizer.load_state_dict


class WaitsInItsStep(OwnedParameters):
    """Rank 0 waits for a collective that no other rank comes to."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if dist.get_rank() == 0:
            dist.barrier()
        return super().step(closure)


class ClaimsAClassThatIsNone(OwnedParameters):
    claims = {"optimizers": ("torch.optim:Moun",)}


class ClaimsALocalClass(OwnedParameters):
    claims = {"optimizers": (type("Made", (Lion,), {"__qualname__": "make.<locals>.Made"}),)}
