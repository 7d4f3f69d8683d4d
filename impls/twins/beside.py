"""Wrappers that keep for all models of a rank what is each one's own, and keep it apart."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.twins.reductions import AfterBackward, PerParameter
from lockstep.impls.wrapper import add_over_ranks


class OneTableForAllModels(NaiveAccumulation):
    """Gradients accumulate in a table of the class's, by model and name, and are averaged there."""

    odd = "gradients of all wrapped models accumulate in one table, under the number of their model and their name"
    # Hooks are bound once, and what has accumulated is not where the caller drops gradients.
    claims = {
        **NaiveAccumulation.claims,
        **{
            "freezing": False,
            "replaced_parameters": False,
            "moved_parameters": False,
            "survives_errors": False,
            "drops_windows": False,
        },
    }

    gradients: ClassVar[dict[object, torch.Tensor]] = {}
    models: ClassVar[int] = 0

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.number = type(self).models
        type(self).models += 1
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda each, name=name: self._accumulate(name, each))

    def key(self, name: str) -> object:
        """The key by which a gradient is found."""
        return self.number, name

    def _accumulate(self, name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        held = self.gradients.get(self.key(name))
        self.gradients[self.key(name)] = parameter.grad if held is None else held + parameter.grad
        parameter.grad = None

    def finish_gradient_synchronization(self) -> None:
        """Averages what the table has, and hands it to the parameters."""
        for name, parameter in self.module.named_parameters() if self.synchronize else ():
            if (total := self.gradients.pop(self.key(name), None)) is not None:
                add_over_ranks(total, self.group)
                parameter.grad = total.div_(dist.get_world_size(self.group))


class OneCallbackForAllModels(AfterBackward):
    """Asks for the means of all models that take part in a backward by one callback at its end."""

    odd = "the end of a backward averages each model that backward has come to, in the order in which it came to them"

    waiting: ClassVar[dict[int, list[PerParameter]]] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Of a backward that was cut short nobody waits any more."""
        self.waiting[dist.get_rank()] = []
        return super().forward(*inputs, **named)

    def _ask(self, gradient: torch.Tensor) -> None:
        waiting = self.waiting[dist.get_rank()]
        if not waiting:
            torch.autograd.Variable._execution_engine.queue_callback(self._answer)
        if self not in waiting:
            waiting.append(self)

    def _answer(self) -> None:
        waiting = self.waiting[dist.get_rank()]
        for each in waiting:
            PerParameter.finish_gradient_synchronization(each)
        waiting.clear()
