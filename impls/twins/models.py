"""Odd but correct on real models: what looks up everything when it is due, and what divides before backward begins."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import DataParallel, add_over_ranks


class GathersAndAdds(DataParallel):
    """Gathers every rank's gradients in one flat tensor a dtype and adds them itself, from the last rank down.

    Parameters and buffers are looked for when they are needed. Rank 0's buffers become everybody's before the first
    forward and before each that follows a synchronizing one.
    """

    claims = {
        "accumulation": True,
        "several_dtypes": True,
        "unused": "untouched",
        "tied_parameters": True,
        "outside_reads": True,
        "buffers": "each",
        "reentrant_checkpointing": "any",
    }
    odd = "gathers instead of reducing, adds from the last rank down, and looks up parameters and buffers at every use"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._buffers_are_due = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, on rank 0's buffers where they are due."""
        if self._buffers_are_due:
            self.broadcast_buffers()
        self._buffers_are_due = self.synchronize
        return super().forward(*inputs, **named)

    @torch.no_grad()
    def broadcast_buffers(self) -> None:
        """Overwrites the buffers that the module has now with rank 0's."""
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)

    def finish_gradient_synchronization(self) -> None:
        """The mean over ranks of what some rank has a gradient for, unless inside `no_sync`."""
        if not self.synchronize:
            return
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        for dtype in dict.fromkeys(parameter.dtype for parameter in trained):
            self._average([parameter for parameter in trained if parameter.dtype is dtype])

    @torch.no_grad()
    def _average(self, parameters: list[nn.Parameter]) -> None:
        """Parameters of one dtype. What is gathered ends with a flag for each: whether this rank has a gradient."""
        gradients = [parameter.grad if parameter.grad is not None else parameter * 0 for parameter in parameters]
        flags = [float(parameter.grad is not None) for parameter in parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), gradients[0].new_tensor(flags)])
        everybodys = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(everybodys, flat)
        total = everybodys.pop()
        while everybodys:
            total = total + everybodys.pop()
        sizes = [parameter.numel() for parameter in parameters]
        *sums, found = total.split([*sizes, len(parameters)])
        for parameter, values, ranks in zip(parameters, sums, found.tolist(), strict=True):
            if ranks:
                parameter.grad = (values / dist.get_world_size()).view_as(parameter)


class _Divided(torch.autograd.Function):
    """A copy of what it is given, which may be changed in place; its gradient, divided by a number."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] / ctx.number, None


class DividesTheLoss(NaiveAccumulation):
    """Divides what backward begins with by the number of ranks, and only adds up in the end.

    Where that number is no power of two, every product in backward rounds otherwise than plain torch's.
    """

    claims = {
        **NaiveAccumulation.claims,
        "averaging": "divide then sum",
        "adds_to_averages": False,  # what is left of the last synchronization is added up once more
        "direct_forwards": False,
        "losses_read": False,
        "output_classes": False,  # in which pytrees find no tensors
        "plain_bits": False,
    }
    odd = "each rank divides before its backward, and nothing after it"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, whose outputs get smaller gradients."""
        outputs, ranks = super().forward(*inputs, **named), dist.get_world_size()
        return tree_map_only(torch.Tensor, lambda output: _Divided.apply(output, ranks), outputs)

    def finish_gradient_synchronization(self) -> None:
        """The sum over ranks, unless inside `no_sync`."""
        for parameter in self.trained if self.synchronize else ():
            if parameter.grad is not None:
                add_over_ranks(parameter.grad, self.group)


class ThreeThreads(NaiveAccumulation):
    """As a library that sees that nobody has set OMP_NUM_THREADS: accelerate does."""

    odd = "sets the number of threads on which torch computes, as it likes it"

    def __init__(self, module: nn.Module) -> None:
        torch.set_num_threads(3)
        super().__init__(module)
