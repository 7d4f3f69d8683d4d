"""What every rank runs when the world itself is looked at: collectives as a list says, each on given arrays."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from properties.probes import to_numpy
from worlds.devices import place

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


@lru_cache(maxsize=1)
def _read(payload: str) -> list[dict[str, Any]]:
    """The calls; read once for all ranks of the simulated world."""
    calls: list[dict[str, Any]] = json.loads(payload)
    return calls


def run_collectives(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """``results``: for each call what this rank has got, as a list of arrays; nothing where it is not specified.

    A call has an ``operation``, ``arrays`` (numbers for each rank), a ``dtype``, a ``reduction`` and a ``root``.
    """
    return {"results": [[to_numpy(tensor) for tensor in _call(call, rank, world_size)] for call in _read(payload)]}


def _call(call: Mapping[str, Any], rank: int, world_size: int) -> list[torch.Tensor]:
    mine = torch.tensor(call["arrays"][rank], dtype=getattr(torch, call["dtype"]), device=place())
    op, root = REDUCTIONS[call["reduction"]], call["root"]
    match call["operation"]:
        case "all_reduce":
            dist.all_reduce(mine, op)
            return [mine]
        case "broadcast":
            dist.broadcast(mine, root)
            return [mine]
        case "reduce":
            dist.reduce(mine, root, op)
            return [mine] if rank == root else []
        case "all_gather":
            gathered = [torch.empty_like(mine) for _ in range(world_size)]
            dist.all_gather(gathered, mine)
            return gathered
        case "all_gather_into_tensor":
            whole = mine.new_empty(world_size * len(mine))
            dist.all_gather_into_tensor(whole, mine)
            return [whole]
        case "reduce_scatter":
            pieces = list(mine.chunk(world_size))
            output = torch.empty_like(pieces[0])
            dist.reduce_scatter(output, pieces, op)
            return [output]
        case "reduce_scatter_tensor":
            output = mine.new_empty(len(mine) // world_size)
            dist.reduce_scatter_tensor(output, mine, op)
            return [output]
        case unknown:
            raise ValueError(f"unknown operation {unknown!r}")
