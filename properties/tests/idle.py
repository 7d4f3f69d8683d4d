"""The implementation that does nothing: it has every method that a law could ask for, and no rank hears of another."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.impls.wrapper import broadcast_from_rank_zero

IDLE, ONLY_BEGINS = f"{__name__}:Idle", f"{__name__}:OnlyBegins"


def as_it_is(values: torch.Tensor, **options: Any) -> torch.Tensor:
    """What a collective gives that no rank takes part in."""
    return values * 1


class Idle(nn.Module):
    """Each rank trains by itself, from its own initial values."""

    all_reduce = broadcast = reduce_scatter = all_gather = staticmethod(as_it_is)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, replicas: int = 1) -> None:
        super().__init__()
        self.module = module
        self.named = dict(module.named_parameters())

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    def finish_gradient_synchronization(self) -> None: ...

    def make_optimizer(self, kind: Any, groups: Sequence[Mapping[str, Any]], masters: bool = False, **rest: Any) -> Any:
        chosen = [{**group, "params": [self.named[name] for name in group["names"]]} for group in groups]
        self.optimizer = kind([{key: group[key] for key in group if key != "names"} for group in chosen], **rest)
        return self.optimizer

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(list(self.named.values()), max_norm, norm_type)

    def unscale_(self, scale: float) -> bool:
        gradients = [parameter.grad.div_(scale) for parameter in self.named.values() if parameter.grad is not None]
        return all(bool(gradient.isfinite().all()) for gradient in gradients)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.module.zero_grad(set_to_none)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.named)

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        return {name: parameter.grad for name, parameter in self.named.items()}

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        return {name: dict(self.optimizer.state[parameter]) for name, parameter in self.named.items()}

    @torch.no_grad()
    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Mapping[str, Any]) -> None:
        for name, values in parameters.items():
            self.named[name].copy_(values)


class OnlyBegins(Idle):
    """Ranks begin alike, and hear no more of one another."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, replicas: int = 1) -> None:
        broadcast_from_rank_zero(module)
        super().__init__(module, bucket_cap_mb, replicas)
