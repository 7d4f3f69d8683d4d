"""Synchronizers that are not ready for what becomes of a module's outputs: a class of their own, a change (P1)."""

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from lockstep.impls.end_of_backward import AtTheEndOfBackward
from lockstep.impls.faults.models import MEAN, REPLICAS
from lockstep.impls.naive import NaiveAccumulation


class AveragesWhatItHearsOf(AtTheEndOfBackward):
    """Averages when backward has come through an output, of which it asks a pytree."""

    known_fault = "where outputs are in a dataclass nothing is averaged"
    source = (
        "L11 V https://github.com/huggingface/transformers/issues/25357, https://github.com/pytorch/pytorch/pull/93125"
    )
    claims = {**AtTheEndOfBackward.claims, "output_classes": True, "drops_losses": False}
    killed_by = (MEAN, REPLICAS)

    def on_end(self) -> None:
        """Averages, unless inside `no_sync`."""
        super().finish_gradient_synchronization()

    def finish_gradient_synchronization(self) -> None:
        """All is done."""


class CountsWhatTrains(NaiveAccumulation):
    """Looks into dataclasses, and takes all that is in one for a tensor."""

    known_fault = (
        "where a model gives nothing beside its outputs, as for a loss that nobody asked for, its forward raises"
    )
    source = "recipe: a field of a dataclass that is None"
    killed_by = (MEAN, REPLICAS)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and a count of what may go backward."""
        outputs = super().forward(*inputs, **named)
        if is_dataclass(outputs):
            self.trains = sum(getattr(outputs, field.name).requires_grad for field in fields(outputs))
        return outputs


class PassesOutputsThrough(NaiveAccumulation):
    """Lets outputs through a function of its own, which would hear of backward."""

    known_fault = "outputs cannot be changed in place, as a loss is by `loss /= n`: autograd refuses it"
    source = "L12 V https://github.com/pytorch/pytorch/issues/61982"
    killed_by = (MEAN, REPLICAS)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return tree_map_only(torch.Tensor, _Sink.apply, super().forward(*inputs, **named))


class _Sink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]


class AveragesWhatComesThroughAView(AveragesWhatItHearsOf):
    """The same, of outputs that it does find, and hooks themselves."""

    known_fault = "where an output is a view that the caller changes in place, nothing is averaged"
    source = "L13 V https://github.com/pytorch/pytorch/issues/181832"
    claims = {**AveragesWhatItHearsOf.claims, "output_classes": False, "in_place": True}
    killed_by = (MEAN, REPLICAS)
