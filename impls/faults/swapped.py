"""Wrappers that do not evaluate with what the caller has written into the parameters, or train on with it (P12)."""

from typing import Any

import torch
from torch import nn

from lockstep.impls.faults.evaluating import GathersToTrain
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer

SWAPPED = ("test_an_evaluation_with_other_weights_reads_these_and_leaves_no_trace",)


class GathersInEveryForward(GathersToTrain):
    """Gathers the changes of a step in the next forward, of whatever kind."""

    known_fault = "what the caller has kept from before the gather comes back over what was gathered"
    source = "recipe: overlap the gather after a step with what comes next"
    killed_by = SWAPPED

    def waits(self) -> bool:
        """Every one does."""
        return True


class BelievesVersions(NaiveAccumulation):
    """Evaluates with casts of the parameters, made anew where autograd's counter of their versions says so."""

    known_fault = "what is written into `.data` is not counted, and a cast of what was there before is used"
    source = "recipe: a cache of casts, as torch.autocast keeps one"
    killed_by = SWAPPED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._casts: dict[str, tuple[nn.Parameter, int, torch.Tensor]] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, in an evaluation with other tensors."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        casts = {name: self._cast(name, parameter) for name, parameter in self.module.named_parameters()}
        return torch.func.functional_call(self.module, casts, inputs, named)

    def _cast(self, name: str, parameter: nn.Parameter) -> torch.Tensor:
        of, version, cast = self._casts.get(name, (None, -1, parameter))
        if of is not parameter or version != parameter._version:
            cast = parameter.detach().clone()
            self._casts[name] = parameter, parameter._version, cast
        return cast


class _Remembers(MasterOptimizer):
    """And what each step has left."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.last = {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def step(self) -> None:
        """Steps, and keeps a copy."""
        super().step()
        self.last = {name: parameter.detach().clone() for name, parameter in self.named.items()}


class EvaluatesWithTheLastStep(StaticBucketsTrainer):
    """Evaluates with a copy that its optimizer keeps."""

    known_fault = "an evaluation reads what the last step has left, whatever was written since"
    source = "recipe: an optimizer that has the weights to evaluate with"
    claims = {**StaticBucketsTrainer.claims, "reloads": False}
    killed_by = SWAPPED

    optimizer_class = _Remembers
    optimizer: _Remembers

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, in an evaluation with other tensors."""
        if torch.is_grad_enabled() or not hasattr(self, "optimizer"):
            return super().forward(*inputs, **named)
        return torch.func.functional_call(self.module, self.optimizer.last, inputs, named)
