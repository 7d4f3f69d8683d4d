"""WRONG on purpose: each gradient is all-reduced, blocking, by the hook that fires when it is final.

Ranks whose backward reaches the parameters in different orders call their all-reduces in different orders. The calls
pair up by position, so one rank's ``a`` is added to another's ``b``: silently where the sizes agree.
"""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import DataParallel


class HookDataParallel(DataParallel):
    """One blocking all-reduce per parameter, from its post-accumulate-grad hook."""

    claims = {"accumulation": True}
    known_fault = "hooks that fire in different orders on different ranks pair up different parameters"
    source = "D01 V https://github.com/NVIDIA/Megatron-LM/pull/2218"
    killed_by: tuple[str, ...] = (
        "test_gradients_equal_the_mean_over_ranks",
        "test_every_rank_issues_the_same_collectives",
        "test_the_result_does_not_depend_on_the_order_in_which_hooks_fire",
    )

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self.synchronize:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
