"""What ranks run in the tests of the worlds, where a list of `worlds.tests.commands` does not say it."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.worlds.tests.commands import calls
from lockstep.worlds.tests.exchanges import data

__all__ = ["calls"]  # handed over by name, like what is defined here


def going_past_the_group(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Asks for a collective what C++ code finds as the group's backend."""
    group: Any = dist.group.WORLD
    backend = dist.ProcessGroup._get_backend(group, torch.device("cpu"))
    backend.allreduce([data(rank, 2)], dist.AllreduceOptions())
    return {}


def reading_early(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Starts collectives, overwrites their inputs, and looks at their outputs before wait, after it, and without it."""
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


def swallowing_a_mismatch(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The handle of a collective on which ranks disagree goes with the error."""
    values = data(rank, 2 + rank)
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(values, async_op=True).wait()
    dist.barrier()
    return {}


def computing_for_a_second(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Takes twice the patience of the tests of gloo."""
    end, count = time.monotonic() + 1.0, 0
    while time.monotonic() < end:
        count += 1
    return {"count": count}


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
    return {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


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


def bits_that_get_lost(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """256 + 1 + 1: bfloat16 has 8 bits, so that each 1 is lost unless the sum is taken in a wider format."""
    values = torch.tensor([256.0 if rank == 0 else 1.0], dtype=torch.bfloat16)
    dist.all_reduce(values)
    return {"sum": values.float().numpy()}


def hash_of_a_name(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """By which Python orders sets of names."""
    return {"hash": hash(payload)}


class SlowOnRankZero:
    """Rank 0 takes a minute to load it. It is never called."""

    def __call__(self, members: int, count: int) -> Any:
        """As an order of reduction would be."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded_slowly_by_rank_0, ()


def _loaded_slowly_by_rank_0() -> SlowOnRankZero:
    time.sleep(60 if os.environ["RANK"] == "0" else 0)
    return SlowOnRankZero()
