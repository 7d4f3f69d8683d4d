"""Megatron Core's `DistributedDataParallel`. It needs the package megatron-core.

Gradients accumulate in buffers, times 1/N, and are summed when the synchronization is finished, or while backward runs.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import broadcast_from_rank_zero

with contextlib.suppress(ImportError):  # claims can be read without it
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

_DOCUMENTED = "https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/distributed.html"
_ZEROED = f"`zero_grad_buffer` needs to be called at the beginning of each training iteration: {_DOCUMENTED}"


class MegatronDDP(nn.Module):
    """As it comes: reduced by `finish_grad_sync`, which the schedules of Megatron Core call after backward.

    The wrapper leaves it to the caller that ranks start alike, and has `broadcast_params` for it.
    """

    claims: dict[str, Any] = {
        "accumulation": True,
        "averaging": "multiply by reciprocal then sum",
        "several_dtypes": True,
        "unused": "zero",
        "adds_to_averages": False,
        "zeroes_late": False,
    }
    why: dict[str, str] = {
        "accumulation": f"`no_sync` turns off gradient synchronization: {_DOCUMENTED}",
        "averaging": f"gradients are divided by the data-parallel size and then summed: {_DOCUMENTED}",
        "several_dtypes": f"a buffer for each dtype: {_DOCUMENTED}",
        "adds_to_averages": f"declined: {_ZEROED}",
        "zeroes_late": f"declined: {_ZEROED}",
        "unused": f"main gradients lie in buffers, which are zeroed each iteration: {_DOCUMENTED}",
    }
    options: dict[str, Any] = {}

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        torch.cuda.current_device = lambda: "cpu"  # where it allocates its buffers
        config = TransformerConfig(num_attention_heads=1, num_layers=1, hidden_size=1)
        alone = dist.new_subgroups(1)[0]  # of tensors, pipelines and experts
        groups = ProcessGroupCollection()
        groups.dp = groups.dp_cp = groups.intra_dp_cp = dist.group.WORLD
        groups.expt_dp = groups.intra_expt_dp = dist.group.WORLD
        groups.tp = groups.pp = groups.ep = alone
        broadcast_from_rank_zero(module)
        options = DistributedDataParallelConfig(**self.options)
        self.wrapped = DistributedDataParallel(config, options, module, pg_collection=groups)
        self.named = dict(module.named_parameters())

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.wrapped(*inputs, **named)

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Of the wrapper, which gives its module's."""
        return self.wrapped.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Of the wrapper, which hands it to its module."""
        return self.wrapped.load_state_dict(state_dict, strict=strict)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Of the wrapper."""
        with self.wrapped.no_sync():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The buffers, as at the beginning of each iteration of its training loop, and what the optimizer was shown."""
        self.wrapped.zero_grad_buffer()
        for parameter in self.named.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Ends the reduction, and shows the optimizer the main gradients, as Megatron Core's optimizers do."""
        self.wrapped.finish_grad_sync()
        for parameter in self.named.values():
            if parameter.requires_grad:
                parameter.grad = parameter.main_grad.clone()


class MegatronOverlapped(MegatronDDP):
    """With `overlap_grad_reduce`: buckets are reduced while backward runs."""

    claims = {**MegatronDDP.claims, "unused": None}
    why = {**MegatronDDP.why, "unused": f"declined: a bucket goes when all of it is ready: {_DOCUMENTED}"}
    options = {"overlap_grad_reduce": True}
