"""Wrappers for which a parameter is what their own forwards read of it (P15)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.faults.outside import GathersWhatIsCalled
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.twins.models import DividesTheLoss
from lockstep.impls.wrapper import DataParallel, add_over_ranks

READ = ("test_a_loss_may_read_parameters_itself",)


class AveragesWhatForwardsReach(DataParallel):
    """Runs the module with aliases of its parameters, and averages what comes to these."""

    known_fault = "what comes to a parameter from elsewhere stays the rank's own"
    source = "recipe: other leaves in forwards, as in FSDP"
    claims: dict[str, object] = {"accumulation": False, "subgroups": False, "hook_order": False, "losses_read": True}
    killed_by = READ

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, with other leaves."""
        aliases = {}
        for name, parameter in self.module.named_parameters():
            alias = aliases[name] = parameter.detach().requires_grad_(parameter.requires_grad)
            if parameter.requires_grad:
                hook = lambda alias, parameter=parameter: self._hand_over(alias, parameter)  # noqa: E731
                alias.register_post_accumulate_grad_hook(hook)
        return torch.func.functional_call(self.module, aliases, inputs, named)

    def _hand_over(self, alias: torch.Tensor, parameter: nn.Parameter) -> None:
        assert alias.grad is not None
        add_over_ranks(alias.grad)
        alias.grad /= dist.get_world_size()
        parameter.grad = alias.grad if parameter.grad is None else parameter.grad + alias.grad
        alias.grad = None


class DividesWhatForwardsGive(DividesTheLoss):
    """Divides what goes back into its forwards by the number of ranks, and adds up in the end."""

    known_fault = "what a loss reads itself is added up and never divided"
    source = "recipe: a mean that is taken on the way back"
    claims = {**DividesTheLoss.claims, "losses_read": True}
    killed_by = READ


class IsThereInForwards(GathersWhatIsCalled):
    """Gathers a unit's parameters for its forward and its backward."""

    known_fault = "a parameter that a loss reads is sharded, or freed, by then"
    source = "L17 V https://github.com/huggingface/trl/pull/6372"
    claims = {**GathersWhatIsCalled.claims, "outside_reads": False, "losses_read": True}
    killed_by = READ


class HidesWhatIsNotUsed(NaiveAccumulation):
    """Has zeros in the place of parameters from a forward to its backward."""

    known_fault = "a loss that reads parameters after the forward reads zeros, and so does its backward"
    source = "recipe: weights that are out of the way while nobody is to need them"
    claims = {
        **NaiveAccumulation.claims,
        **dict.fromkeys(("freezing", "replaced_parameters", "moved_parameters", "copied_models"), False),
        **dict.fromkeys(("drops_losses", "survives_errors", "measures_late", "several_forwards", "in_place"), False),
        "reentrant_checkpointing": None,
    }
    killed_by = READ

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._hidden: dict[nn.Parameter, torch.Tensor] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        outputs = super().forward(*inputs, **named)
        if getattr(outputs, "requires_grad", False):
            for parameter in self.module.parameters():
                self._hidden[parameter] = parameter.data
                parameter.data = torch.zeros_like(parameter)
            outputs.register_hook(self._bring_back)
        return outputs

    def _bring_back(self, _: torch.Tensor) -> None:
        for parameter, values in self._hidden.items():
            parameter.data = values
        self._hidden.clear()
