"""pytorch-pfn-extras' `DistributedDataParallel`. It needs the package pytorch-pfn-extras.

It averages all gradients at once when backward ends: a sum, multiplied by the rounded 1/N.
"""

import contextlib
from typing import Any

import torch.distributed as dist
from torch import nn

with contextlib.suppress(ImportError):  # claims can be read without it
    from pytorch_pfn_extras.nn.parallel import DistributedDataParallel

_DOCUMENTED = (
    "https://pytorch-pfn-extras.readthedocs.io/en/latest/reference/generated/"
    "pytorch_pfn_extras.nn.parallel.DistributedDataParallel.html"
)


def pfn_ddp(module: nn.Module, process_group: "dist.ProcessGroup | None" = None) -> Any:
    """With `negotiate_grads`, the default: for models "whose computation graph is dynamic"."""
    return DistributedDataParallel(module, broadcast_buffers=False, process_group=process_group)


pfn_ddp.claims = {  # type: ignore[attr-defined]
    "accumulation": True,
    "unused": "untouched",
    "idle_ranks": True,
    "buffers": "initial",
    "subgroups": True,
    "output_classes": False,
}
pfn_ddp.why = {  # type: ignore[attr-defined]
    "accumulation": f"`no_sync` disables synchronization after backward: {_DOCUMENTED}",
    "unused": f"`negotiate_grads` is for a computation graph that is dynamic: {_DOCUMENTED}",
    "idle_ranks": f"`negotiate_grads` is for a computation graph that is dynamic: {_DOCUMENTED}",
    "buffers": f"they are synchronized; `broadcast_buffers` is off, as it comes after backward: {_DOCUMENTED}",
    "subgroups": f"`process_group` is the group used for broadcasting and reducing: {_DOCUMENTED}",
    "output_classes": "declined: it looks for tensors in tuples, lists and dicts, as torch's module hooks do: "
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",
}
