"""Wrappers that are right where ranks are processes, and keep state that simulated ranks share."""

import functools
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from lockstep.properties.tests.shapes import Plain

launched = 0
pending: list[Any] = []


class Bookkeeping(Plain):
    """A class attribute has what is on its way."""

    claims: ClassVar[dict[str, Any]] = {"hook_order": False}
    handles: ClassVar[dict[str, Any]] = {}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.handles.clear()
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(functools.partial(self.launch, name))

    def launch(self, name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad /= dist.get_world_size()
        self.handles[name] = dist.all_reduce(parameter.grad, async_op=True)

    def finish_gradient_synchronization(self) -> None:
        for handle in self.handles.values():
            handle.wait()
        self.handles.clear()


class CountsInAGlobal(Plain):
    """A module's global counts, and is bound anew by each rank."""

    def finish_gradient_synchronization(self) -> None:
        global launched
        launched = 0
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                launched += 1
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        assert launched == sum(parameter.grad is not None for parameter in self.module.parameters())


class PendingInAList(Plain):
    """A list of the module's is filled by each rank."""

    def finish_gradient_synchronization(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                pending.append((dist.all_reduce(parameter.grad, async_op=True), parameter))
        while pending:
            handle, parameter = pending.pop()
            handle.wait()
            parameter.grad /= dist.get_world_size()


class Singleton(Plain):
    """One object of the class keeps the wrapper that was made last."""

    _last: ClassVar[Any] = None

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        type(self)._last = self

    def finish_gradient_synchronization(self) -> None:
        self._last.average()


@functools.lru_cache
def things() -> list[Any]:
    """One list for each process, in a cache that nobody can keep apart."""
    return []


class PendingInACache(Plain):
    """The same as `PendingInAList`, where nothing can keep it apart."""

    def finish_gradient_synchronization(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                things().append((dist.all_reduce(parameter.grad, async_op=True), parameter))
        while things():
            handle, parameter = things().pop()
            handle.wait()
            parameter.grad /= dist.get_world_size()


class BookkeepingThatSums(Bookkeeping):
    """Wrong: never divides."""

    def launch(self, name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        self.handles[name] = dist.all_reduce(parameter.grad, async_op=True)


class BookkeepingThatMisses(Bookkeeping):
    """Wrong: keeps one handle, and reduces nothing more until it is waited for."""

    def launch(self, name: str, parameter: torch.Tensor) -> None:
        if not self.handles:
            super().launch(name, parameter)
