"""Wrappers that take for a backward what the caller takes itself of gradients, or let none be differentiated (P1)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from lockstep.impls.end_of_backward import AtTheEndOfBackward
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import DataParallel, add_over_ranks
from lockstep.impls.zero3 import Zero3

TAKEN = ("test_a_loss_of_gradients_is_averaged_like_any_other",)


class AveragesWhereOutputsEnd(AtTheEndOfBackward):
    """Averages at the end of each backward of which it hears."""

    known_fault = "a backward that does not come through the outputs is not heard of"
    source = "recipe: hooks on outputs, as DDP has one with a static graph"
    claims = {
        **AtTheEndOfBackward.claims,
        **dict.fromkeys(("drops_losses", "adds_to_averages", "outlive_steps"), False),
        **{"double_backward": True, "backwards": None},
    }
    killed_by = TAKEN

    def on_end(self) -> None:
        """Averages, unless inside `no_sync`."""
        super().finish_gradient_synchronization()

    def finish_gradient_synchronization(self) -> None:
        """Nothing is left to do."""


class FreesWhatIsReadOnceMore(Zero3):
    """Frees parameters when backward has left their unit, whatever graph of it there is."""

    known_fault = "gradients of gradients are made of parameters that are freed by then"
    source = "L19 V https://github.com/pytorch/pytorch/issues/172543"
    claims = {**Zero3.claims, "double_backward": True}
    killed_by = TAKEN

    def refuse_a_graph(self) -> None:
        """Not here."""


class WaitsForWhatForwardsHaveRead(DataParallel):
    """Averages all gradients, zeros where there are none, once all have come to which its outputs lead."""

    known_fault = "where a loss of gradients leaves out a parameter that forward has read, nothing is averaged"
    source = "L18 V https://github.com/pytorch/pytorch/issues/47562"
    claims: dict[str, object] = {"accumulation": False, "unused": "zero", "double_backward": True}
    killed_by = TAKEN

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._awaited: set[Any] = set()
        self._nodes = {parameter: torch.autograd.graph.get_gradient_edge(parameter).node for parameter in self.trained}
        for parameter, node in self._nodes.items():
            parameter.register_post_accumulate_grad_hook(lambda _, node=node: self._came(node))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        outputs = super().forward(*inputs, **named)
        if outputs.requires_grad:
            self._awaited = _behind(outputs.grad_fn) & {*self._nodes.values()}
        return outputs

    def _came(self, node: Any) -> None:
        self._awaited.discard(node)
        if not self._awaited:
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        for parameter in self._nodes:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            add_over_ranks(parameter.grad)
            parameter.grad /= dist.get_world_size()


def _behind(node: Any) -> set[Any]:
    """The nodes of a graph that begins here."""
    found, left = set(), [node]
    while left:
        each = left.pop()
        if each is not None and each not in found:
            found.add(each)
            left += [behind for behind, _ in each.next_functions]
    return found


class CutsTheGraph(NaiveAccumulation):
    """Hands on in memory of its own what comes to the inputs."""

    known_fault = "gradients by the inputs have no graph behind them"
    source = "recipe: a hook on inputs that copies what comes to them, as where other memory is to hold it"
    killed_by = TAKEN

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, on inputs whose gradients are copied."""
        return super().forward(*tree_map_only(torch.Tensor, _with_a_copied_gradient, inputs), **named)


def _with_a_copied_gradient(given: torch.Tensor) -> torch.Tensor:
    passed = given.view_as(given)
    if given.requires_grad:
        passed.register_hook(lambda gradient: gradient.detach().clone())
    return passed
