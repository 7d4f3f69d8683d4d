"""WRONG on purpose: as `impls.hook`, but the hook starts an asynchronous all-reduce. The defect is the same."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import DataParallel


class AsyncHookDataParallel(DataParallel):
    """One asynchronous all-reduce per parameter, from its hook; `finish_gradient_synchronization` waits and divides."""

    claims = {"accumulation": True, "overlaps": True}
    known_fault = "hooks that fire in different orders on different ranks pair up different parameters"
    source = "D01 V https://github.com/NVIDIA/Megatron-LM/pull/2218"
    killed_by: tuple[str, ...] = (
        "test_gradients_equal_the_mean_over_ranks",
        "test_every_rank_issues_the_same_collectives",
        "test_the_result_does_not_depend_on_the_order_in_which_hooks_fire",
    )

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._in_flight: list[tuple[dist.Work, torch.Tensor]] = []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self.synchronize:
            assert parameter.grad is not None
            self._in_flight.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

    def finish_gradient_synchronization(self) -> None:
        """Waits for every all-reduce, then divides."""
        for work, gradient in self._in_flight:
            work.wait()
            gradient /= dist.get_world_size()
        self._in_flight.clear()
