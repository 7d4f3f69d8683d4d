"""pipegoose's data parallelism and its ZeRO-1. They need the package pipegoose.

Each gradient is divided and then all-reduced in its own hook, before autograd accumulates it.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import broadcast_from_rank_zero

with contextlib.suppress(ImportError):  # claims can be read without it
    from pipegoose.distributed.parallel_context import ParallelContext
    from pipegoose.distributed.parallel_mode import ParallelMode
    from pipegoose.nn.data_parallel.data_parallel import DataParallel
    from pipegoose.optim.zero.optim import DistributedOptimizer

_README = "https://github.com/xrsrke/pipegoose#readme"


def context() -> Any:
    """A parallel context of the ranks that are there, all of them data-parallel. Its own makes processes of its own."""
    made: Any = object.__new__(ParallelContext)
    modes, alone = (ParallelMode.GLOBAL, ParallelMode.DATA), (ParallelMode.TENSOR, ParallelMode.PIPELINE)
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    made.data_parallel_size, made.tensor_parallel_size, made.pipeline_parallel_size = len(ranks), 1, 1
    made._groups = dict.fromkeys(modes, dist.group.WORLD)
    made._global_ranks = dict.fromkeys((*modes, *alone), rank)
    made._local_ranks = dict.fromkeys(modes, rank) | dict.fromkeys(alone, 0)
    made._world_sizes = dict.fromkeys(modes, len(ranks)) | dict.fromkeys(alone, 1)
    made._ranks_in_group = dict.fromkeys(modes, ranks) | {mode: [rank] for mode in alone}
    places = {mode: (rank if mode in modes else 0) for mode in (modes[0], *alone, modes[1])}
    made._ranks_to_device = {tuple(places.items()): rank}
    return made


def pipegoose_ddp(module: nn.Module) -> Any:
    """`DataParallel`. Its documentation leaves it to the caller that ranks start alike."""
    broadcast_from_rank_zero(module)
    return DataParallel(module, context()).parallelize()


def pipegoose_zero1(params: Any, optimizer_cls: type[torch.optim.Optimizer], **options: Any) -> Any:
    """`DistributedOptimizer` around the plain optimizer."""
    return DistributedOptimizer(optimizer_cls(params, **options), context())


pipegoose_ddp.claims = {"averaging": "divide then sum"}  # type: ignore[attr-defined]
pipegoose_ddp.why = {  # type: ignore[attr-defined]
    "averaging": f"as its code has it; the documentation does not say: {_README}"
}
pipegoose_zero1.claims = {"closures": False, "saved_by": None}  # type: ignore[attr-defined]
pipegoose_zero1.why = {  # type: ignore[attr-defined]
    "closures": f"declined: the documentation steps without one: {_README}",
    "saved_by": f"declined: the documentation saves no optimizer: {_README}",
}
