"""Wrappers for which a parameter is what their own forwards read of it (P15)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from impls.faults.outside import GathersWhatIsCalled
from impls.twins.models import DividesTheLoss
from impls.wrapper import DataParallel, add_over_ranks

READ = ("test_a_loss_may_read_parameters_itself",)


class AveragesWhatForwardsReach(DataParallel):
    """Runs the module with aliases of its parameters, and averages what comes to these."""

    known_fault = "what comes to a parameter from elsewhere stays the rank's own"
    source = "recipe: other leaves in forwards, as in FSDP"
    claims = {"accumulation": True, "hook_order": False, "losses_read": True, "module_hooks": False, "evaluates": False}
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
        if self.synchronize:
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
