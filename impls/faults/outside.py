"""Synchronizers that know of a parameter only through calls of the module that holds it (P15)."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.shards import Flat
from lockstep.impls.zero3 import Zero3

OUTSIDE = "test_a_parameter_read_outside_its_module_is_like_any_other"


class GathersWhatIsCalled(Zero3):
    """Gathers a unit's parameters before its forward, and nowhere else."""

    known_fault = "a parameter that another module reads is still sharded, or freed, when it is read"
    source = "recipe, as in https://github.com/NVIDIA/Megatron-LM/pull/4467"
    claims = {**Zero3.claims, "outside_reads": True, "exact_memory": False, "sharded_by": None, "schedule": None}
    killed_by = (OUTSIDE,)


class ReadsWhatWasGathered(GathersWhatIsCalled):
    """Keeps the memory that it has gathered into, with what was in it then."""

    known_fault = "who reads a parameter without calling its module reads the values of the last gathering"
    source = "recipe, as in https://github.com/NVIDIA/Megatron-LM/pull/4467: stale references"
    killed_by = (OUTSIDE,)

    def __init__(self, module: nn.Module, replicas: int = 1) -> None:
        super().__init__(module, replicas)
        self._gather(self.flats)
        self._release(self.flats)

    def _free(self, flat: Flat) -> None:
        for member in flat.members:
            if not member.untyped_storage().size():
                member.untyped_storage().resize_(member.nbytes)


class ReadsZeros(GathersWhatIsCalled):
    """Puts zeros of the same shape where a parameter was, so that whoever reads it sees no error."""

    known_fault = "a parameter that is sharded reads as something else, and no error says so"
    source = "recipe, as in https://github.com/deepspeedai/DeepSpeed/issues/930"
    killed_by = (OUTSIDE,)

    @torch.no_grad()
    def _free(self, flat: Flat) -> None:
        for member in flat.members:
            member.untyped_storage().resize_(member.nbytes)
            member.data.zero_()


class ReducesWhatWasCalled(NaiveAccumulation):
    """Notes in forward which modules are called, and reduces their parameters."""

    known_fault = "the parameters of a module that is read but never called are taken for unused"
    source = "recipe: the used-map is made by hooks on modules"
    claims = {**NaiveAccumulation.claims, "survives_errors": False}
    killed_by = (OUTSIDE,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._called: set[nn.Module] = set()
        for unit in module.modules():
            unit.register_forward_hook(lambda unit, *_: self._called.add(unit))

    @property
    def trained(self) -> list[nn.Parameter]:
        """Of the modules that were called."""
        called = {each for unit in self._called for each in unit.parameters(recurse=False)}
        return [each for each in super().trained if each in called]

    def finish_gradient_synchronization(self, *given: Any) -> None:
        """Begins to note anew."""
        super().finish_gradient_synchronization(*given)
        self._called.clear()
