"""Synchronizers that take gradients before the caller's own hooks have seen them (P2)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from impls.naive import NaiveAccumulation
from impls.wrapper import add_over_ranks

HOOKED = ("test_a_hook_of_the_callers_on_a_parameter_counts",)
# Each binds the tensors of its parameters once, and has what accumulates elsewhere; other laws say what comes of it.
_CLAIMS = {
    **NaiveAccumulation.claims,
    **dict.fromkeys(("freezing", "replaced_parameters", "moved_parameters", "survives_errors"), False),
    **dict.fromkeys(("drops_windows", "drops_losses", "replaced_gradients"), False),
}


class TakesWhatComes(NaiveAccumulation):
    """Adds up what comes to each parameter in tensors of its own."""

    known_fault = "what accumulates is what came before the hooks that were registered later"
    source = "recipe: main gradients that are filled by hooks on tensors"
    claims = _CLAIMS
    killed_by = HOOKED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        for parameter in self.trained:
            parameter.register_hook(lambda gradient, parameter=parameter: self._take(parameter, gradient))

    def _take(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        before = self._sums.get(parameter)
        if before is None:
            before = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        self._sums[parameter] = before + gradient

    def finish_gradient_synchronization(self) -> None:
        """Averages the sums, which become the gradients."""
        for parameter in self.trained if self.synchronize else ():
            if (total := self._sums.pop(parameter, None)) is not None:
                add_over_ranks(total)
                parameter.grad = total / dist.get_world_size()


class RemovesHooks(NaiveAccumulation):
    """Sees to it that no hook is registered twice."""

    known_fault = "with the hooks of its own those of others are removed before each forward"
    source = "recipe: hooks that are registered anew for each micro-batch"
    killed_by = HOOKED

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        for parameter in self.trained:
            if parameter._backward_hooks:
                parameter._backward_hooks.clear()
            parameter.register_hook(self._came)
        return super().forward(*inputs, **named)

    def _came(self, gradient: torch.Tensor) -> None:
        """Nothing to do: a correct algorithm would note it."""


class TrainsOnCopies(NaiveAccumulation):
    """Runs the module with aliases of its parameters, of which it takes the gradients."""

    known_fault = "gradients come to aliases, which have no hooks of the caller's"
    source = "recipe, as FSDP2 in https://github.com/meta-pytorch/torchrec/pull/4268"
    claims = {**_CLAIMS, "other_models": False}
    killed_by = HOOKED

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, with other leaves."""
        if not torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        self._aliases = {name: each.detach().requires_grad_() for name, each in self.module.named_parameters()}
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                hook = lambda alias, parameter=parameter: self._hand_over(alias, parameter)  # noqa: E731
                self._aliases[name].register_post_accumulate_grad_hook(hook)
        return torch.func.functional_call(self.module, self._aliases, inputs, named)

    def _hand_over(self, alias: torch.Tensor, parameter: nn.Parameter) -> None:
        parameter.grad = alias.grad if parameter.grad is None else parameter.grad + alias.grad
        alias.grad = None
