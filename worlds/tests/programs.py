"""What ranks run in the tests of the worlds. Functions are handed over by name, so they are here and not in the tests.

`calls` does what a list says, another list for each rank; what needs more than a list is a function of its own.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


def data(rank: int, count: int, dtype: str = "float64") -> torch.Tensor:
    """1, 2, 3, ... on rank 0, 11, 12, 13, ... on rank 1, and so on: no two alike."""
    return torch.arange(1, count + 1).add(10 * rank).to(getattr(torch, dtype))


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
}
USUAL = {"dtype": "float64", "count": 8, "reduction": "sum", "root": 0}


def calls(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: for each rank a list of {"do": a command, and what is not as in USUAL}. Gives what each wrote."""
    results = []
    for call in json.loads(payload)[rank]:
        call = {**USUAL, **call}
        mine = data(rank, call["count"], call["dtype"])
        results.append([tensor.double().numpy() for tensor in COMMANDS[call["do"]](rank, world_size, mine, call)])
    return {"pid": os.getpid(), "results": results}


def reading_early(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Starts collectives, overwrites their inputs, and looks at their outputs before and after wait, and never waited."""
    reduced, gathered, scattered = data(rank, 2), torch.zeros(2 * world_size).double(), torch.zeros(1).double()
    to_gather, to_scatter, never = data(rank, 2), data(rank, world_size), data(rank, 2)
    works = [
        dist.all_reduce(reduced, async_op=True),
        dist.all_gather_into_tensor(gathered, to_gather, async_op=True),
        dist.reduce_scatter_tensor(scattered, to_scatter, async_op=True),
    ]
    dist.all_reduce(never, async_op=True)
    dist.barrier()  # all members have launched all of them
    outputs = (reduced, gathered, scattered, never)
    before = [tensor.numpy().copy() for tensor in outputs]
    for tensor in (reduced, to_gather, to_scatter):
        tensor.fill_(-1)
    completed = [bool(work.is_completed()) for work in works]
    for work in reversed(works):
        work.wait()
    return {"before": before, "completed": completed, "after": [tensor.numpy().copy() for tensor in outputs]}


def waiting_twice(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What is written between two waits for the same collective stays."""
    values = data(rank, 2)
    work = dist.all_reduce(values, async_op=True)
    work.wait()
    values.fill_(-1)
    work.wait()
    return {"values": values.numpy()}


def future(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The future of a collective, outside backward."""
    values = data(rank, 2)
    doubled = dist.all_reduce(values, async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()
    return {"values": values.numpy(), "doubled": doubled.numpy()}


def two_buckets_in_opposite_order(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The bug that started Lockstep: same sizes, so no backend can tell."""
    a, b = torch.tensor([1.0 + 10 * rank]), torch.tensor([2.0 + 10 * rank])
    for bucket in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(bucket)
    return {"a": a.numpy(), "b": b.numpy()}


def rows_and_columns(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Four ranks in a square: sums in rows while those in columns are in flight, and a broadcast from a global rank."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    in_row, in_column, from_root = data(rank, 2), data(rank, 2), data(rank, 2)
    works = [dist.all_reduce(in_row, group=row, async_op=True), dist.all_reduce(in_column, group=column, async_op=True)]
    if rank % 2:  # each group has a sequence of its own, so that ranks may wait in any order
        works.reverse()
    for work in works:
        work.wait()
    dist.broadcast(from_root, src=2 + rank % 2, group=column)
    member = [dist.get_rank(group) for group in (*rows, *columns)]
    return {"row": in_row.numpy(), "column": in_column.numpy(), "from root": from_root.numpy(), "member": member}


def waiting_across_groups(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Each rank blocks on the group that the other comes to later."""
    other = dist.new_group([0, 1])
    for group in (dist.group.WORLD, other) if rank == 0 else (other, dist.group.WORLD):
        dist.all_reduce(data(rank, 2), group=group)
    return {}


def mismatch_in_a_subgroup(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Ranks 1 and 3 disagree among themselves."""
    odd = dist.new_group([1, 3])
    if rank % 2:
        dist.all_reduce(data(rank, rank), group=odd)
    return {"rank": rank}


def swallowing_errors(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """An implementation that catches everything: rank 1 comes to none of rank 0's collectives."""
    caught = 0
    for _ in range(3 if rank == 0 else 0):
        try:
            dist.all_reduce(data(rank, 2))
        except Exception:
            caught += 1
    return {"caught": caught}


def waiting_outside_the_world(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Rank 0 holds a lock across a collective that rank 1 comes to only with that lock: no baton can see it."""
    with _LOCK:
        dist.all_reduce(data(rank, 2))
    return {}


_LOCK = threading.Lock()


def spoil(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Leaves behind all that a run must not hand to the next."""
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.manual_seed(rank + 5)
    torch.rand(rank + 3)
    torch.use_deterministic_algorithms(True)
    dist.new_group([0])
    dist.all_reduce(data(rank, 2), async_op=True)
    return {}


def look(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What `spoil` could have spoiled."""
    values = torch.ones(1, requires_grad=True) * (rank + 1)
    dist.all_reduce(values.detach())
    return {
        "dtype": str(torch.get_default_dtype()),
        "gradients": values.requires_grad,
        "random": torch.rand(2).double().numpy(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "groups": dist.get_pg_count(),
        "sum": values.detach().double().numpy(),
    }


def group_names(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Groups have names, by which compiled and functional collectives find them."""
    groups = [dist.group.WORLD, dist.new_group([0, 1])]
    return {"names": [group.group_name for group in groups if group is not None]}


def random_numbers(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Random numbers, drawn before and after giving others their turn."""
    first = torch.rand(2)
    dist.barrier()
    return {"drawn": torch.cat([first, torch.rand(2)]).double().numpy()}


def environment(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What torchrun would tell a rank, read after others had their turn."""
    dist.barrier()
    return {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}


def all_kinds_of_values(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Numbers that depend on the world's order of doing things, if anything does."""
    values = torch.rand(3) + rank
    works = [dist.all_reduce(values, async_op=True), dist.broadcast(torch.rand(2), src=0, async_op=True)]
    for work in works if rank % 2 else reversed(works):
        work.wait()
    return {"values": values.double().numpy(), "payload": json.loads(payload), "numpy": np.arange(rank)}


def launching_more_on_rank_0(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Rank 0 launches a collective that rank 1 never hears of, and does not wait for it."""
    dist.barrier()
    if rank == 0:
        dist.all_reduce(data(rank, 2), async_op=True)
    return {}


def children(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Leaves a process of its own behind."""
    return {"pid": os.getpid(), "child": subprocess.Popen(["sleep", "1000"]).pid}


# What supervised children run: `serve(connection, ...)`.


def echo(connection: Connection, word: str) -> None:
    """Answers each message with itself and its process."""
    while True:
        connection.send((word, connection.recv(), os.getpid()))


def obey(connection: Connection) -> None:
    """Does what a message says."""
    while True:
        match connection.recv():
            case "print a little":
                print("on stdout")
                print("on stderr", file=sys.stderr)
                os.write(1, b"past Python\n")
                connection.send("printed")
            case "print":
                print("x" * 5000 + "the end")
                connection.send("printed")
            case "exit":
                sys.exit(7)
            case "raise":
                raise KeyError("nobody catches this")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "return":
                return
            case "hang":
                connection.send("hanging")
                loop_for_ever(0, 0, torch.empty(0), {})
            case "leave a process":
                connection.send((os.getpid(), subprocess.Popen(["sleep", "1000"]).pid))
