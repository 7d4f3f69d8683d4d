"""Synchronizers bound to memory that the model has left, such as where it was before it moved to a device (P15)."""

from collections.abc import Mapping

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.zero1 import Zero1

MOVED = "test_a_model_whose_tensors_have_moved_is_synchronized_where_they_are"


class KnowsParametersByAddress(NaiveAccumulation):
    """Lists the addresses of what it will average, which it keeps from being used again."""

    known_fault = "a parameter that has moved is none of those that are synchronized"
    source = "L01 V https://github.com/pytorch/pytorch/issues/104336"
    killed_by = (MOVED,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._then = {parameter.data_ptr(): parameter.data for parameter in module.parameters()}

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters at these addresses."""
        return [parameter for parameter in super().trained if parameter.data_ptr() in self._then]


class StepsWhatWasThere(Zero1):
    """Cuts this rank's elements out of the parameters once, steps them in place, and has only the others' sent."""

    known_fault = "after the model has moved, this rank's elements are stepped where they were, and never in the model"
    source = "L08 V https://github.com/huggingface/accelerate/issues/2665"
    claims = {**Zero1.claims, "strided_parameters": False}
    killed_by = (MOVED,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._then = {parameter: super(StepsWhatWasThere, self).values(parameter) for parameter in self.flat_of}

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        """Views of the memory in which the parameters were then."""
        return self._then[parameter]

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Tells all ranks this rank's new elements, and takes those of the others."""
        mine = {parameter: super(StepsWhatWasThere, self).values(parameter).clone() for parameter in self.flat_of}
        super().publish(stepped)
        for parameter, values in mine.items():
            super().values(parameter).copy_(values)


class SendsTheBufferTheyHaveLeft(StaticBuckets):
    """Takes a gradient that is the tensor which it has put into its bucket to be there still."""

    known_fault = "a gradient that has moved adds up elsewhere, and the buffer is sent without it"
    source = "L01 V https://github.com/pytorch/pytorch/issues/104336"
    claims = {**StaticBuckets.claims, "moved_parameters": True}
    killed_by = (MOVED,)
