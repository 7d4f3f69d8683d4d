"""Synchronizers that do not follow parameters which the model did not have when it was wrapped (P15)."""

from typing import Any

from torch import nn

from lockstep.impls.twins.binding import FollowsNewNames
from lockstep.impls.wrapper import add_over_ranks

NEW_NAMES = ("test_parameters_with_names_that_the_model_did_not_have_are_synchronized",)


class LeavesAdaptersLocal(FollowsNewNames):
    """Lists the names of the parameters when it wraps the model."""

    known_fault = "the gradient of a parameter whose name came after wrapping stays each rank's own"
    source = (
        "L20 D https://github.com/huggingface/transformers/pull/48873, "
        "L21 V https://github.com/hao-ai-lab/FastVideo/pull/1666"
    )
    killed_by = NEW_NAMES

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.names = {name for name, _ in module.named_parameters()}

    def average(self, name: str, parameter: nn.Parameter) -> None:
        if name in self.names:
            super().average(name, parameter)


class ListsNamesInItsFirstForward(FollowsNewNames):
    """Is made for models that get adapters, but before they are trained."""

    known_fault = "the gradient of a parameter whose name came after the first forward stays each rank's own"
    source = "recipe: a list that is made late, and never again"
    killed_by = NEW_NAMES
    names: set[str] | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Lists the names, once."""
        if self.names is None:
            self.names = {name for name, _ in self.module.named_parameters()}
        return super().forward(*inputs, **named)

    def average(self, name: str, parameter: nn.Parameter) -> None:
        if self.names is None or name in self.names:
            super().average(name, parameter)


class AddsUpAdapters(LeavesAdaptersLocal):
    """Averages what it has listed, and adds up whatever else there is."""

    known_fault = "the gradient of a parameter with a new name is the sum over ranks, and not the mean"
    source = "recipe: another way for parameters that came later"
    killed_by = NEW_NAMES

    def average(self, name: str, parameter: nn.Parameter) -> None:
        super().average(name, parameter)
        if name not in self.names and parameter.grad is not None:
            add_over_ranks(parameter.grad)
