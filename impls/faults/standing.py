"""A wrapper that is asked for parameters and state in the place of the model, and tells others."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets

STANDS = "test_the_wrapper_stands_for_the_model_where_it_is_asked_for_parameters_and_state"


class SavesWithoutItsPrefix(StaticBuckets):
    """Saves the model's own names, so that the file is good without it, and loads, with its own, whatever there is."""

    known_fault = "nothing that was saved is loaded, since no name of the file is known, and nobody is told"
    source = "I24 V https://github.com/pytorch/examples/issues/1029"
    killed_by = (STANDS,)

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Of the model."""
        return self.module.state_dict(*args, **named)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = False, assign: bool = False) -> Any:
        """Of itself."""
        return super().load_state_dict(state_dict, strict, assign)


class LoadsParametersAlone(StaticBuckets):
    """Walks over its parameters when it loads."""

    known_fault = "buffers stay as they were before loading"
    source = "I25 V https://github.com/sgl-project/sglang/pull/19688"
    claims = {**StaticBuckets.claims, "stands_for_model": True}
    killed_by = (STANDS,)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load parameters alone; the other entries of the state dict are ignored."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(state_dict[name])


class TellsWhatIsTrainedNow(NaiveAccumulation):
    """Gives an optimizer what requires gradients."""

    known_fault = "what was frozen when the optimizer was made is never stepped, though it is trained later"
    source = "recipe: parameters filtered by requires_grad when they are asked for"
    claims = {**NaiveAccumulation.claims, "freezing": True}
    killed_by = (STANDS,)

    def named_parameters(self, *args: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The named parameters, which `parameters()` follows."""
        return ((name, each) for name, each in super().named_parameters(*args, **named) if each.requires_grad)


class TellsItsCopies(NaiveAccumulation):
    """Hands an optimizer parameters of its own, of the values that it began with, and averages into their gradients."""

    known_fault = "what an optimizer of the wrapper's parameters steps is not what the model computes with"
    source = "recipe: a second set of parameters that is told and never copied back"
    killed_by = (STANDS,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.copies = {name: nn.Parameter(each.detach().clone()) for name, each in module.named_parameters()}

    def named_parameters(self, *args: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The named parameters, which `parameters()` follows."""
        return iter(self.copies.items())

    def finish_gradient_synchronization(self) -> None:
        """For both."""
        super().finish_gradient_synchronization()
        for name, parameter in self.module.named_parameters():
            self.copies[name].grad = parameter.grad
