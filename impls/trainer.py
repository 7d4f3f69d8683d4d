"""Static buckets, and the steps after backward: unscaling, clipping, and an optimizer with float32 masters.

Gradients are the mean on every rank by then, so nothing here communicates. The methods are those of
`properties.sharded.Sharded`, which a caller would otherwise write itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.wrapper import torch_groups

Options = Mapping[str, Any]


class MasterOptimizer:
    """A torch optimizer that steps float32 masters of 16-bit parameters, and the other parameters themselves."""

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        named: Mapping[str, nn.Parameter],
        groups: Sequence[Options],
        masters: bool,
        defaults: Options,
    ) -> None:
        self.named = named
        self.masters = {name: self.master_of(each) for name, each in named.items() if masters and _is_short(each)}
        self.held = {name: self.masters.get(name, parameter) for name, parameter in named.items()}
        self.inner = kind(torch_groups(groups, self.held), **defaults)

    def master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master that is stepped in place of a 16-bit parameter."""
        return nn.Parameter(parameter.detach().float())

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The gradient with which a parameter's master is stepped."""
        return parameter.grad

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Options that the next step uses."""
        return self.inner.param_groups

    def step(self) -> None:
        """Steps whatever has a gradient."""
        for name, master in self.masters.items():
            gradient = self.gradient(self.named[name])
            master.grad = None if gradient is None else gradient.to(master.dtype)
        self.inner.step()
        with torch.no_grad():
            for name, master in self.masters.items():
                if master.grad is not None:
                    self.named[name].copy_(master)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By parameter, under torch's names, and "master"."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, held in self.held.items():
            state = self.inner.state.get(held, {})
            found[name] = {key: torch.as_tensor(value) for key, value in state.items() if value is not None}
            if name in self.masters:
                found[name]["master"] = held.detach()
        return found

    @torch.no_grad()
    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]] | None) -> None:
        """Takes up what `state` gave; without it begins afresh, from the parameters as they are."""
        self.inner.state.clear()
        for name, held in self.held.items():
            saved = dict((state or {}).get(name, {}))
            master = saved.pop("master", None)
            if name in self.masters:
                held.copy_(self.named[name] if master is None else master)
            if saved:
                self.inner.state[held] = {key: value.clone() for key, value in saved.items()}


class StaticBucketsTrainer(StaticBuckets):
    """See the module. Parameters go by their dotted names in the wrapped module, a tied one by its first."""

    # Its optimizer keeps the tensors that it was made of.
    claims = {
        **StaticBuckets.claims,
        "replaced_parameters": False,
        "optimizer_before": False,
        "swaps_weights": True,
    }

    optimizer_class: type[MasterOptimizer] = MasterOptimizer

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Options], masters: bool = False, **defaults: Any
    ) -> MasterOptimizer:
        """An optimizer of that class; a group is {"names": [...], **options}."""
        self.optimizer = self.optimizer_class(kind, dict(self.module.named_parameters()), groups, masters, defaults)
        return self.optimizer

    def gradients(self) -> list[torch.Tensor]:
        """Of each parameter once, where there is one."""
        return [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]

    def unscale_(self, scale: float) -> bool:
        """Divide by the loss scale. Means are the same on all ranks, and so is the answer if all are finite."""
        gradients = self.gradients()
        for gradient in gradients:
            gradient /= scale
        return all(bool(gradient.isfinite().all()) for gradient in gradients)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales gradients by min(1, max_norm / (norm + 1e-6)); returns the norm."""
        norm = self.total_norm(self.gradients(), norm_type)
        self.scale_gradients(self.module.parameters(), max_norm, norm)
        return norm

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """The norm of all together."""
        return torch.nn.utils.get_total_norm(gradients, norm_type)

    def scale_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
        """Make gradients smaller, if their norm exceeds the maximum."""
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Every parameter's state."""
        return self.optimizer.state()

    @torch.no_grad()
    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None,
    ) -> None:
        """Takes up what `full_parameters` and `full_optimizer_state` gave."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(parameters[name])
        self.optimizer.load(optimizer_state)


def _is_short(parameter: nn.Parameter) -> bool:
    return parameter.dtype.itemsize == 2
