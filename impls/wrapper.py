"""The base of every data-parallel wrapper here: the same start on every rank, and `no_sync`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

Group: TypeAlias = "dist.ProcessGroup | None"

# What the correct wrappers here promise, beside what is particular to each.
ROBUST = {
    "several_dtypes": True,
    "several_forwards": True,
    "backwards": "in no_sync",
    "sixteen_bits": True,
    "survives_errors": True,
    "drops_losses": True,
    "measures_late": True,
    "acts_alone": True,
    "optimizer_before": True,
    "copied_models": True,
    "leaves_random_numbers": True,
    "callers_collectives": True,
    "callers_hooks": True,
    "replaced_gradients": True,
    "freezing": True,
    "tied_parameters": True,
    "outside_reads": True,
    "losses_read": True,
    "double_backward": True,
    "empty_parameters": True,
    "strided_parameters": True,
    "replaced_parameters": True,
    "buffers": "initial",
    "cost": True,
    "other_models": True,
    "subgroups": False,  # claimed in `impls.twins.subgroups`: much that derives from these knows the world alone
}


class DataParallel(nn.Module):
    """A wrapper of a module, called like it. An algorithm reads ``synchronize`` and adds its communication.

    ``process_group``: the ranks that train; None: all. An algorithm may leave no choice.
    """

    def __init__(self, module: nn.Module, process_group: Group = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.synchronize = True
        broadcast_from_rank_zero(module, process_group)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that the module now has and trains, each tensor once: a caller may freeze and replace some."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients accumulate locally. Forward and backward both belong inside.

        It restores the state from before, so that it nests, also if an exception leaves it.
        """
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before


def torch_groups(groups: Sequence[Mapping[str, Any]], tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Groups as torch's optimizers take them. One of these is {"names": [...], **options}; ``tensors``: by name."""
    told = ({key: value for key, value in group.items() if key != "names"} for group in groups)
    return [
        {**options, "params": [tensors[name] for name in group["names"]]}
        for options, group in zip(told, groups, strict=True)
    ]


@torch.no_grad()
def broadcast_from_rank_zero(module: nn.Module, group: Group = None) -> None:
    """Overwrites parameters, frozen ones too, and buffers with those of the group's rank 0. Every member calls it."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()  # NCCL takes no other
        dist.broadcast(whole, group=group, group_src=0)
        if whole is not tensor:
            tensor.copy_(whole)


def add_over_ranks(tensor: torch.Tensor, group: Group = None) -> None:
    """All-reduces in place, whatever the strides."""
    whole = tensor.contiguous()  # NCCL takes no other
    dist.all_reduce(whole, group=group)
    if whole is not tensor:
        tensor.copy_(whole)
