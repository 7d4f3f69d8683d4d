"""Optimizers that do not hear of what the caller has written into the parameters (P12)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer
from lockstep.impls.zero1 import Zero1

WRITTEN = ("test_training_goes_on_from_what_the_caller_has_written_into_parameters",)


class StepsItsOwnShards(Zero1):
    """Keeps this rank's pieces of the parameters in memory of its own, and steps these."""

    known_fault = "a step publishes what the optimizer had, and what was written into the parameters is gone"
    source = "recipe: shards in memory of their own, as in NVIDIA/Megatron-LM#5071 and radixark/miles#2572"
    claims = {**Zero1.claims, **HOLDS_MORE}
    killed_by = WRITTEN

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self._own: dict[nn.Parameter, torch.Tensor] = {}
        super().__init__(module, bucket_cap_mb)

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        """The kept values, made when they are first asked for."""
        if parameter not in self._own:
            self._own[parameter] = super().values(parameter).clone()
        return self._own[parameter]

    def load_parameter(self, parameter: nn.Parameter, whole: torch.Tensor) -> None:
        """Of this it hears."""
        super().load_parameter(parameter, whole)
        self._own.pop(parameter, None)


class _Copies(MasterOptimizer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._copy()

    def _copy(self) -> None:
        self.copies = {parameter: parameter.detach().clone() for parameter in self.named.values()}

    def step(self) -> None:
        with torch.no_grad():
            for parameter, copy in self.copies.items():
                if parameter.grad is not None:
                    parameter.copy_(copy)
        super().step()
        for parameter, copy in self.copies.items():
            if parameter.grad is not None:
                copy.copy_(parameter.detach())

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]] | None) -> None:
        super().load(state)
        self._copy()


class StepsCopies(StaticBucketsTrainer):
    """Steps copies of all parameters, made with the optimizer, and writes them back."""

    known_fault = "a step begins with the copy that was made with the optimizer, whatever was written since"
    source = "recipe: masters that are made before the weights are loaded, as in NVIDIA/Megatron-LM#174"
    claims = {**StaticBucketsTrainer.claims, "writes_weights": True}
    killed_by = WRITTEN
    optimizer_class = _Copies


class PutsTheGatheredBack(Zero1):
    """The first forward after a step begins with the buffers that the step has gathered."""

    known_fault = "what is written between a step and the next forward is overwritten by that forward"
    source = "recipe: two buffers for the parameters, of which a gather fills one while the other is used"
    claims = {**Zero1.claims, **HOLDS_MORE}
    killed_by = WRITTEN

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self._gathered: dict[nn.Parameter, torch.Tensor] = {}
        super().__init__(module, bucket_cap_mb)

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """And remembers."""
        super().publish(stepped)
        self._gathered = {parameter: parameter.detach().clone() for parameter in self.flat_of}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, with these."""
        for parameter, gathered in self._gathered.items():
            parameter.data.copy_(gathered)
        self._gathered = {}
        return super().forward(*inputs, **named)

    def load_parameter(self, parameter: nn.Parameter, whole: torch.Tensor) -> None:
        """Then the buffers are of no use."""
        super().load_parameter(parameter, whole)
        self._gathered = {}
