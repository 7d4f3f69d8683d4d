"""torch's DistributedDataParallel with its options.

It multiplies by the rounded 1/N while copying into the bucket. Gradients that lie in the bucket already, as with
``gradient_as_bucket_view`` from the second window on, are divided instead. Then it sums. Gradients are final when
backward returns.
"""

import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

Group: TypeAlias = "dist.ProcessGroup | None"

# Joins: to divide by the ranks that remain, DDP asks a handle for its result in C++, which a process group written in
# Python, as the simulated world's, cannot give: gloo shows that it is right (properties/tests/test_joins_on_gloo.py).
# With unused parameters or a static graph, join is wrong in torch 2.13 (docs/findings).
# Not claimed: errors of the caller's ("expected to have finished reduction in the prior iteration"), and parameters
# frozen after wrapping, which it waits for.
IN_EVERY_FORM = {
    "accumulation": True,
    "several_dtypes": True,
    "several_forwards": True,
    "measures_late": True,
    "acts_alone": True,
    "copied_models": True,
    "optimizer_before": True,
    "leaves_random_numbers": True,
    "backwards": "in no_sync",  # elsewhere the first alone is synchronized (docs/findings)
    "sixteen_bits": True,
    "tied_parameters": True,
    "callers_hooks": True,
    "replaced_gradients": True,
    "outside_reads": True,
    "losses_read": True,
    "double_backward": True,
    "sparse_gradients": True,
    "empty_parameters": True,
    "strided_parameters": True,
    "cost": True,
    "other_models": True,
    "overlaps": True,
    "averaging": "multiply by reciprocal then sum",
}
_CLAIMS = {**IN_EVERY_FORM, "buffers": "each", "joins": ("world size",)}

# torch 2.13 renames the option, warns of the old name, and no longer lets it turn off the broadcast at construction.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_BROADCASTS = "forward_sync_buffers" if _RENAMED else "broadcast_buffers"


class TorchDDP(DistributedDataParallel):
    """DDP with its defaults: every trained parameter takes part on every rank."""

    claims = {**_CLAIMS, "reentrant_checkpointing": "each once"}
    options: Mapping[str, Any] = {}  # of DDP, beside those that one may choose

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float = 25.0,
        broadcast_buffers: bool = True,
        process_group: Group = None,
    ) -> None:
        chosen: dict[str, Any] = {"bucket_cap_mb": bucket_cap_mb, _BROADCASTS: broadcast_buffers}
        super().__init__(module, process_group=process_group, **chosen, **self.options)


class TorchDDPFindUnused(TorchDDP):
    """With ``find_unused_parameters``: those that no rank used keep their gradient untouched."""

    # Its documentation rules out re-entrant checkpointing. A parameter used only in a window that was dropped halfway
    # ends in an error, and one used only for an output in a dataclass that nobody uses, too (docs/findings).
    # So does one that a loss of gradients leaves out, or it is never reduced.
    claims = {
        **_CLAIMS,
        **dict.fromkeys(("drops_windows", "output_classes", "double_backward"), False),
        **{"unused": "untouched", "joins": ()},
    }
    options = {"find_unused_parameters": True}


class TorchDDPBucketView(TorchDDP):
    """With ``gradient_as_bucket_view``: gradients are views of the buckets, as in `impls.static_buckets`."""

    claims = {**_CLAIMS, "reentrant_checkpointing": "each once"}
    options = {"gradient_as_bucket_view": True}


class TorchDDPBatchedCopy(TorchDDP):
    """With ``batched_grad_copy``, new in torch 2.13: one copy fills a bucket that is ready, and it is divided whole."""

    claims = {**_CLAIMS, "averaging": "divide then sum", "reentrant_checkpointing": "each once"}
    options = {"batched_grad_copy": True}


class TorchDDPStaticGraph(TorchDDP):
    """With ``static_graph``: the graph of the first iteration is taken to be that of every other."""

    # torch 2.13: a first backward inside no_sync ends in an internal assertion, and where outputs are in a dataclass,
    # or the caller takes gradients of them first, nothing is synchronized (docs/findings).
    claims = {**_CLAIMS, "accumulation": False, "joins": (), "output_classes": False, "double_backward": False}
    options = {"static_graph": True}


class TorchDDPHook(TorchDDP):
    """With a communication hook, the plainest there is: it divides the bucket, then all-reduces it."""

    claims = {**_CLAIMS, "averaging": "divide then sum"}
    hook = staticmethod(default_hooks.allreduce_hook)

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float = 25.0,
        broadcast_buffers: bool = True,
        process_group: Group = None,
    ) -> None:
        super().__init__(module, bucket_cap_mb, broadcast_buffers, process_group)
        self.register_comm_hook(process_group, self.hook)


class TorchDDPCompressed(TorchDDPHook):
    """With the hook that casts each bucket to float16, divides it, and all-reduces that. bfloat16 it has for NCCL."""

    # torch adds up no sparse tensors in 16 bits.
    claims = {**TorchDDPHook.claims, "wire_dtype": "float16", "sparse_gradients": False}
    hook = staticmethod(default_hooks.fp16_compress_hook)
