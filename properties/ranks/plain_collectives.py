"""Run a list of collectives on given arrays. Every rank runs it to check the world itself."""

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist

from lockstep.properties.ranks.probes import to_numpy
from lockstep.worlds.devices import place

Tensors = list[torch.Tensor]
REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


@lru_cache(maxsize=1)
def _read(payload: str) -> list[dict[str, Any]]:
    """The calls, parsed once for all ranks of the simulated world."""
    calls: list[dict[str, Any]] = json.loads(payload)
    return calls


def run_collectives(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """``results``: for each call, the list of arrays that this rank received; empty where the result is not specified.

    A call has an ``operation``, ``arrays`` (numbers for each rank), a ``dtype``, a ``reduction``, a ``root`` (a rank of
    the world) and a ``group`` (ranks, or None for all). If it is ``asynchronous``, it is waited for after all calls
    have begun.
    """
    calls = _read(payload)
    groups = {
        ranks: dist.new_group(ranks) for ranks in dict.fromkeys(tuple(call["group"] or ()) for call in calls) if ranks
    }
    begun = [_begin(call, rank, groups) for call in calls]
    for _, work in begun:
        if work is not None:
            work.wait()
    return {"results": [[to_numpy(tensor) for tensor in outputs] for outputs, _ in begun]}


def _begin(call: Mapping[str, Any], rank: int, groups: Mapping[tuple[int, ...], Any]) -> tuple[Tensors, Any]:
    """The tensors that a collective writes on this rank, and its handle if it must still be waited for."""
    members = call["group"] or range(len(call["arrays"]))
    if rank not in members:
        return [], None
    group, size = groups.get(tuple(members)), len(members)
    mine = torch.tensor(call["arrays"][rank], dtype=getattr(torch, call["dtype"]), device=place())
    op, root, later = REDUCTIONS[call["reduction"]], call["root"], call["asynchronous"]
    match call["operation"]:
        case "all_reduce":
            return [mine], dist.all_reduce(mine, op, group, later)
        case "all_reduce, sparse":
            sparse = mine.to_sparse()
            return [sparse], dist.all_reduce(sparse, op, group, later)
        case "all_reduce, coalesced":
            with dist._coalescing_manager(group, async_ops=later) as both:
                for half in mine.chunk(2):
                    dist.all_reduce(half, op, group)
            return [mine], both if later else None
        case "broadcast":
            return [mine], dist.broadcast(mine, root, group, later)
        case "broadcast, coalesced":  # DDP and many wrappers broadcast parameters and buffers in this way
            dist._broadcast_coalesced(group or dist.group.WORLD, list(mine.chunk(2)), 2**20, members.index(root))
            return [mine], None
        case "broadcast_object_list":
            objects = [call["arrays"][rank]]
            dist.broadcast_object_list(objects, root, group)
            return [torch.tensor(objects[0], dtype=mine.dtype)], None
        case "reduce":
            work = dist.reduce(mine, root, op, group, later)
            return [mine] if rank == root else [], work
        case "all_gather":
            gathered = [torch.empty_like(mine) for _ in members]
            return gathered, dist.all_gather(gathered, mine, group, later)
        case "all_gather_into_tensor":
            whole = mine.new_empty(size * len(mine))
            return [whole], dist.all_gather_into_tensor(whole, mine, group, later)
        case "all_gather_object":
            objects = [None] * size
            dist.all_gather_object(objects, call["arrays"][rank], group)
            return [torch.tensor(each, dtype=mine.dtype) for each in objects], None
        case "reduce_scatter":
            pieces = list(mine.chunk(size))
            output = torch.empty_like(pieces[0])
            return [output], dist.reduce_scatter(output, pieces, op, group, later)
        case "reduce_scatter_tensor":
            output = mine.new_empty(len(mine) // size)
            return [output], dist.reduce_scatter_tensor(output, mine, op, group, later)
        case "gather":
            gathered = [torch.empty_like(mine) for _ in members] if rank == root else []
            return gathered, dist.gather(mine, gathered or None, root, group, later)
        case "scatter":
            output = mine.new_empty(len(mine) // size)
            return [output], dist.scatter(output, list(mine.chunk(size)) if rank == root else None, root, group, later)
        case "all_to_all":
            outputs = [torch.empty_like(piece) for piece in mine.chunk(size)]
            return outputs, dist.all_to_all(outputs, list(mine.chunk(size)), group, later)
        case "all_to_all_single":
            output = torch.empty_like(mine)
            return [output], dist.all_to_all_single(output, mine, group=group, async_op=later)
        case "send and recv":
            return [_from_the_rank_before(mine, rank, size, later)], None
        case unknown:
            raise ValueError(f"unknown operation {unknown!r}")


def _from_the_rank_before(mine: torch.Tensor, rank: int, size: int, later: bool) -> torch.Tensor:
    """Send messages round the ring one after another. Rank 0 sends first, so that no circle of waiting ranks arises."""
    got = torch.empty_like(mine)
    send, receive = (dist.isend, dist.irecv) if later else (dist.send, dist.recv)
    moves = [partial(receive, got, (rank - 1) % size), partial(send, mine, (rank + 1) % size)]
    for move in moves if rank else moves[::-1]:
        work = move()
        if later:
            work.wait()
    return got
