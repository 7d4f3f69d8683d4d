"""All-reduces of sparse tensors: what every rank runs."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Result = Mapping[str, Any]


ROWS, WIDTH = 5, 2


def rows_of(rank: int, values: float = 1.0) -> torch.Tensor:
    """Of a table, one row that each rank has for itself, told twice, and row 0, which all have."""
    told = [[values, 2.0], [3.0, 4.0], [rank + 0.5, 0.5]]
    return torch.sparse_coo_tensor([[rank + 1, rank + 1, 0]], told, (ROWS, WIDTH), check_invariants=True)


def adding_up(payload: str, rank: int, world_size: int) -> Result:
    """A sum, and, asynchronously, the sum of that; then one of no rows at all but on rank 1."""
    rows = rows_of(rank)
    dist.all_reduce(rows)
    first = rows.to_dense().numpy()
    work = dist.all_reduce(rows, async_op=True)
    assert work is not None
    work.wait()
    few = rows_of(rank) if rank == 1 else torch.zeros(ROWS, WIDTH).to_sparse(1)
    dist.all_reduce(few)
    told = {"first": first, "then": rows.to_dense().numpy(), "few": few.to_dense().numpy()}
    return {**told, "coalesced": rows.is_coalesced(), "rows": rows.indices().numpy()}


def in_which_order(payload: str, rank: int, world_size: int) -> Result:
    """Floats of which another order gives another sum."""
    rows = rows_of(0, values=[1e8, 1.0, -1e8, 3.14][rank])
    dist.all_reduce(rows)
    return {"sum": rows.to_dense().numpy()}


def looking_before_it_waits(payload: str, rank: int, world_size: int) -> Result:
    """What is there before it waits and after; and what it changes meanwhile."""
    rows = rows_of(rank)
    work = dist.all_reduce(rows, async_op=True)
    assert work is not None
    rows.mul_(2)
    before = rows.to_dense().numpy()
    dist.barrier()
    work.wait()
    return {"before": before, "after": rows.to_dense().numpy()}


def dropping_the_handle(payload: str, rank: int, world_size: int) -> Result:
    """Nobody waits; the tensor is kept, or, as the payload says, gone too."""
    rows = rows_of(rank)
    dist.all_reduce(rows, async_op=True)
    if payload == "gone":
        del rows
    dist.barrier()
    return {}


def what_is_no_sum(payload: str, rank: int, world_size: int) -> Result:
    """What the payload says, or the sum of rows on rank 0 with something else on the others."""
    rows = rows_of(rank)
    if payload == "coalesced":
        dist.group.WORLD.allreduce_coalesced([rows])
    elif payload == "half":
        dist.all_reduce(rows.half())
    elif payload == "broadcast":
        dist.broadcast(rows, 0)
    else:
        others = {"one alone": rows.to_dense(), "otherwise sparse": rows.to_dense().to_sparse()}
        rows = others.get(payload, rows) if rank else rows
        dist.all_reduce(rows, dist.ReduceOp.MAX if payload == "maximum" else dist.ReduceOp.SUM)
    return {}


def as_if_on_nccl(payload: str, rank: int, world_size: int) -> Result:
    """What a group says that takes itself for one of NCCL's. ``payload``: whether the rank minds, or errs then."""
    group = dist.group.WORLD
    try:
        group._name_of_backend = "nccl"
        dist.all_reduce(rows_of(rank))
    except NotImplementedError as error:
        if payload == "minds":
            raise
        if payload:
            raise RuntimeError("what it does instead is wrong")  # noqa: B904, of which the error is only the context
        return {"said": str(error)}
    finally:
        group._name_of_backend = "gloo"
    return {}


def embedding(payload: str, rank: int, world_size: int) -> Result:
    """DDP around an embedding whose gradients are sparse, two micro-batches of which one synchronizes. ``payload``:
    whether it looks for unused parameters.
    """
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH, sparse=True), nn.Linear(WIDTH, 1))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 3 * world_size)  # so that nothing rounds
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=json.loads(payload))
    words = torch.tensor([rank, rank, 4])
    with wrapped.no_sync():
        wrapped(words).sum().backward()
    wrapped(words).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(each is not None for each in gradients)
    return {
        "layouts": [str(each.layout) for each in gradients if each is not None],
        "gradients": [each.to_dense().numpy() for each in gradients if each is not None],
    }
