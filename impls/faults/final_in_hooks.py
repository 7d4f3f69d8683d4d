"""Synchronizers that claim gradients to be final in hooks of the caller's, and finish them later (P15)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.faults.hooked import TrainsOnCopies
from lockstep.impls.wrapper import DataParallel

FINAL = ("test_a_hook_finds_the_final_gradient_once_it_has_accumulated",)


class ReducesBehindTheAccumulation(DataParallel):
    """Reduces in a hook of the node that accumulates, as DDP does."""

    known_fault = "hooks that run once a gradient has accumulated run before it is reduced"
    source = "E14 D https://github.com/kohya-ss/musubi-tuner/issues/679"
    claims: dict[str, object] = {"accumulation": True, "hook_order": False, "final_in_hooks": True}
    killed_by = FINAL

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.register()

    def register(self) -> None:
        """The hooks."""
        self.nodes = [
            torch.autograd.graph.get_gradient_edge(each).node for each in self.trained
        ]  # they live while held
        for node, parameter in zip(self.nodes, self.trained, strict=True):
            node.register_hook(lambda *_, parameter=parameter: self.reduce(parameter))

    def reduce(self, parameter: torch.Tensor) -> None:
        """One parameter's gradient, and waits for it."""
        if self.synchronize:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class HooksWhatItIsFirstCalledWith(ReducesBehindTheAccumulation):
    """Registers its hooks, those of tensors, when it is first called."""

    known_fault = "hooks that the caller has registered before the first forward run before gradients are reduced"
    source = "recipe: hooks that are registered late, as where parameters may still move"
    killed_by = FINAL

    _hooked = False

    def register(self) -> None:
        """Not yet."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not self._hooked:
            self._hooked = True
            for parameter in self.trained:
                parameter.register_post_accumulate_grad_hook(self.reduce)
        return super().forward(*inputs, **named)


class RunsNone(TrainsOnCopies):
    """Has aliases accumulate, and hands over what comes of them."""

    known_fault = "hooks that run once a gradient has accumulated never run"
    source = "recipe: as FSDP1, which trains another tensor than the caller sees"
    claims = {**TrainsOnCopies.claims, "callers_hooks": False, "final_in_hooks": True}
    killed_by = FINAL


class DividesWhereItFinishes(DataParallel):
    """Adds up in hooks, and divides all at once."""

    known_fault = "what hooks of the caller's find is the sum over the ranks"
    source = "recipe: a division that is left to the end"
    claims = ReducesBehindTheAccumulation.claims
    killed_by = FINAL

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._added: list[torch.Tensor] = []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._add)

    def _add(self, parameter: torch.Tensor) -> None:
        if self.synchronize:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            self._added.append(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Divides what was added up."""
        for parameter in self._added:
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
        self._added.clear()


class RunsThemAgain(DataParallel):
    """Averages in the end, and then runs the hooks of others, which have run by themselves before."""

    known_fault = "hooks of the caller's find a rank's own gradient first"
    source = "recipe: hooks that are run by hand, as in FSDP2"
    claims = ReducesBehindTheAccumulation.claims
    killed_by = FINAL

    def finish_gradient_synchronization(self) -> None:
        """Averages, and runs hooks."""
        for parameter in self.trained if self.synchronize else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
                for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
                    hook(parameter)
