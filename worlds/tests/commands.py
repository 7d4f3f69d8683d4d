"""Collectives, and ways to fail: `calls` does what a list says, another list on each rank.

Functions are handed to worlds by name, so they are here and not in the tests.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.tests.exchanges import EXCHANGES, data

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


def all_reduce(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    dist.all_reduce(mine, REDUCTIONS[call["reduction"]])
    return [mine]


def all_reduce_coalesced(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    tensors = [mine, data(rank + 100, 2, call["dtype"])]
    dist.all_reduce_coalesced(tensors, REDUCTIONS[call["reduction"]])
    return tensors


def all_reduce_of_a_transposed_view(
    rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]
) -> list[torch.Tensor]:
    matrix = torch.stack([mine, 2 * mine])
    dist.all_reduce(matrix.t(), REDUCTIONS[call["reduction"]])
    return [matrix]


def broadcast(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    dist.broadcast(mine, src=call["root"])
    return [mine]


def reduce(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    dist.reduce(mine, call["root"], REDUCTIONS[call["reduction"]])
    return [mine] if rank == call["root"] else []  # elsewhere it is not specified


def all_gather(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    outputs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(outputs, mine)
    return outputs


def all_gather_into_tensor(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    output = mine.new_zeros(size * len(mine))
    dist.all_gather_into_tensor(output, mine)
    return list(output.chunk(size))


def all_gather_in_place(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    """The input is its rank's slice of the output."""
    output = mine.new_zeros(size * len(mine))
    own = output[rank * len(mine) : (rank + 1) * len(mine)]
    own.copy_(mine)
    dist.all_gather_into_tensor(output, own)
    return list(output.chunk(size))


def reduce_scatter(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    output = mine.new_zeros(len(mine) // size)
    dist.reduce_scatter(output, list(mine.chunk(size)), REDUCTIONS[call["reduction"]])
    return [output]


def reduce_scatter_tensor(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    output = mine.new_zeros(len(mine) // size)
    dist.reduce_scatter_tensor(output, mine, REDUCTIONS[call["reduction"]])
    return [output]


def reduce_scatter_in_place(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    """The output is its rank's slice of the input."""
    output = mine.chunk(size)[rank]
    dist.reduce_scatter_tensor(output, mine, REDUCTIONS[call["reduction"]])
    return [output]


def barrier(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    dist.barrier()
    return [mine]


def all_gather_object(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    """Goes through all_gather of sizes and of padded bytes."""
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "values": [rank] * rank})
    return [torch.tensor([told["rank"], *told["values"]]) for told in objects]


def fail(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    error = RuntimeError(f"rank {rank} had enough")
    error.add_note("at the third step")
    raise error


def sys_exit(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    print(f"rank {rank} leaves", file=sys.stderr)
    sys.exit(3)


def os_exit(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    print(f"rank {rank} leaves", flush=True)
    os._exit(3)


def kill(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def loop_for_ever(rank: int, size: int, mine: torch.Tensor, call: Mapping[str, Any]) -> list[torch.Tensor]:
    while True:
        time.sleep(0.01)


COMMANDS: dict[str, Callable[[int, int, torch.Tensor, Mapping[str, Any]], list[torch.Tensor]]] = {
    command.__name__: command
    for command in (
        *(all_reduce, all_reduce_coalesced, all_reduce_of_a_transposed_view, broadcast, reduce, barrier),
        *(all_gather, all_gather_into_tensor, all_gather_in_place, all_gather_object),
        *(reduce_scatter, reduce_scatter_tensor, reduce_scatter_in_place),
        *(fail, sys_exit, os_exit, kill, loop_for_ever),
    )
} | EXCHANGES
USUAL = {"dtype": "float64", "count": 8, "reduction": "sum", "root": 0, "asynchronous": False}


def calls(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: for each rank a list of {"do": a command, and what is not as in USUAL}. Gives what each wrote."""
    results = []
    for call in json.loads(payload)[rank]:
        call = {**USUAL, **call}
        mine = data(rank, call["count"], call["dtype"])
        results.append([tensor.double().numpy() for tensor in COMMANDS[call["do"]](rank, world_size, mine, call)])
    return {"pid": os.getpid(), "results": results}
