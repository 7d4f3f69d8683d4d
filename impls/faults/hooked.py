"""Synchronizers and sharding that pass the caller's own hooks by, on parameters and on modules (P2)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.faults.made_anew import MakesThemWhereItWraps
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import add_over_ranks
from lockstep.impls.zero3 import Zero3

HOOKED = ("test_a_hook_of_the_callers_on_a_parameter_counts",)
MODULE_HOOKED = ("test_a_hook_of_the_callers_on_the_model_counts",)
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


class MakesWhatWasHookedAnew(MakesThemWhereItWraps):
    """Trains parameters of its own, which a mask of the caller's does not know."""

    known_fault = "hooks that parameters had before wrapping are lost"
    source = "recipe, as FSDP in https://github.com/pytorch/pytorch/issues/103958"
    killed_by = HOOKED


class CallsItsForward(NaiveAccumulation):
    """Calls the method that the module defines."""

    known_fault = "no hook on the wrapped module runs, as it is not the module that is called"
    source = "L14 D https://github.com/NVIDIA/Megatron-LM/issues/5789"
    killed_by = MODULE_HOOKED

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and nothing around it."""
        return self.module.forward(*inputs, **named)


class CallsTheForwardsOfUnits(NaiveAccumulation):
    """Puts a module of its own in the place of each unit, to see what comes."""

    known_fault = "no hook on a unit runs, as it is not the unit that is called"
    source = "recipe: as above, one module further in"
    claims = {**NaiveAccumulation.claims, "stands_for_model": False}
    killed_by = MODULE_HOOKED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for name, unit in list(module.named_children()):
            setattr(module, name, _Observed(unit))


class RemovesWhatComesBefore(NaiveAccumulation):
    """Keeps others from changing what units are called with."""

    known_fault = "hooks that run before a unit's forward are removed"
    source = "recipe: hooks on modules that are registered anew for each micro-batch"
    killed_by = MODULE_HOOKED

    removed = "_forward_pre_hooks"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        for unit in self.module.children():
            getattr(unit, self.removed).clear()
        return super().forward(*inputs, **named)


class RemovesWhatComesBack(RemovesWhatComesBefore):
    """Keeps others from changing what comes back to units."""

    known_fault = "hooks that run before a unit's backward are removed"
    source = "recipe: hooks on modules that are registered anew for each micro-batch"
    killed_by = MODULE_HOOKED
    removed = "_backward_pre_hooks"


class _Observed(nn.Module):
    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.unit.forward(*inputs, **named)


class HasTheLastWord(NaiveAccumulation):
    """Sees what the module gives, and sees to it that it does so once."""

    known_fault = "with its own hook of the last forward it removes those of others"
    source = "recipe: hooks on modules that are registered anew for each micro-batch"
    killed_by = MODULE_HOOKED

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, observed."""
        self.module._forward_hooks.clear()
        self.module.register_forward_hook(lambda *_: None)
        return super().forward(*inputs, **named)


class GathersBehindTheCaller(Zero3):
    """Gathers in the last of a unit's hooks."""

    known_fault = "hooks that units had before wrapping find parameters without elements"
    source = "recipe: our own ZeRO-3, until a law had hooks of the caller's on modules"
    killed_by = MODULE_HOOKED

    def __init__(self, module: nn.Module, replicas: int = 1) -> None:
        of_others = {unit: list(unit._forward_pre_hooks) for unit in module.modules()}
        super().__init__(module, replicas)
        for unit, hooks in of_others.items():
            for hook in reversed(hooks):
                unit._forward_pre_hooks.move_to_end(hook, last=False)
