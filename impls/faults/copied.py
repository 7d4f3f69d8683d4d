"""Synchronizers that leave something on the model that a copy of it takes along (P15)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation

COPIED = ("test_a_copy_of_the_model_stays_what_it_was",)


class HangsItsGroupOnTheModel(NaiveAccumulation):
    """Has a hook on the model, and a group of its own."""

    known_fault = "the model cannot be copied: a hook of its own takes the wrapper along, and that has a group"
    source = (
        "L15 D https://github.com/pytorch/pytorch/issues/82070, L16 D https://github.com/pytorch/pytorch/issues/149138"
    )
    killed_by = COPIED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.own = dist.new_group()
        module.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, *_: Any) -> None:
        """Nothing to do: a correct algorithm would prepare."""


class PointsWhatIsCalledAtItsOwn(NaiveAccumulation):
    """Sees to it before each forward that the parameters are where it keeps them."""

    known_fault = "a copy that is called is pointed at the parameters that are trained"
    source = "recipe: a hook on the model that gives parameters their place in a flat tensor"
    claims = {**NaiveAccumulation.claims, "replaced_parameters": False, "moved_parameters": False}
    killed_by = COPIED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._places = [parameter.data for parameter in module.parameters()]
        module.register_forward_pre_hook(lambda called, _: self._point(called))

    def _point(self, called: nn.Module) -> None:
        for parameter, place in zip(called.parameters(), self._places, strict=True):
            parameter.data = place


class AwaitsTheBackwardOfACopy(NaiveAccumulation):
    """Says so where a backward has been forgotten."""

    known_fault = "the forward of a copy is taken for one of training, as the model that is trained is in that mode"
    source = "recipe: a hook on the model that knows the wrapper"
    claims = {
        **NaiveAccumulation.claims,
        **dict.fromkeys(("measures", "measures_late", "drops_losses", "survives_errors", "several_forwards"), False),
        **dict.fromkeys(("freezing", "replaced_parameters", "inference_mode"), False),
    }
    killed_by = COPIED

    _awaits = False

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        module.register_forward_pre_hook(lambda *_: self._begin())
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._came)

    def _begin(self) -> None:
        if self._awaits:
            raise RuntimeError("a second forward, and no backward of the first")
        self._awaits = self.module.training

    def _came(self, _: torch.Tensor) -> None:
        self._awaits = False


class IsItsOwnCopy(NaiveAccumulation):
    """Keeps what cannot be copied from being copied."""

    known_fault = "a copy of the model is the model itself"
    source = "recipe: a __deepcopy__ that is to get around a group"
    killed_by = COPIED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        module.__dict__["__deepcopy__"] = lambda _: module
