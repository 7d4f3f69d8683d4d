"""What ranks run in the tests of what processes would own: random numbers, environment, threads, time to poll."""

import os
import queue
import random
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.worlds.tests.exchanges import data


def drawing(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Draws from each generator between collectives: as many numbers as the rank has, and normal ones by halves."""
    drawn: list[float] = []
    for _ in range(4):
        dist.barrier()
        for _ in range(rank + 1):
            drawn += [random.random(), float(np.random.rand()), float(torch.rand(1).double())]
        drawn += [random.gauss(0, 1), float(np.random.randn())]
    for _ in range(4):  # the second of a pair of normal numbers is kept apart from a generator's state
        for _ in range(1 + rank % 2):
            drawn += [random.gauss(0, 1), float(np.random.randn()), float(torch.randn(1).double())]
        dist.barrier()
    return {"drawn": drawn}


def setting_variables(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Sets, changes and deletes variables that the other ranks have too."""
    home = os.environ.pop("HOME", None) if rank == 1 else os.environ.get("HOME")
    os.environ["LOCKSTEP_TEST"] = str(rank)
    dist.barrier()
    os.environ["RANK"] += "!"
    dist.barrier()
    names = ("LOCKSTEP_TEST", "RANK", "LOCAL_RANK", "WORLD_SIZE", "HOME")
    return {"seen": [os.environ.get(name) for name in names], "home": home, "in C": os.popen("echo $RANK").read()}


def looking_at_variables(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    return {"seen": [os.environ.get(name) for name in ("LOCKSTEP_TEST", "RANK")], "home": "HOME" in os.environ}


def polling(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Rank 0 polls for what the others launch later, after waiting for each other, and rank 1 in between for more."""
    values = data(rank, 2)
    others = dist.new_group(range(1, world_size))
    if rank:
        dist.all_reduce(data(rank, 2), group=others)
        second = dist.all_reduce(data(rank, 2), group=others, async_op=True)
        while rank == 1 and not second.is_completed():
            pass
        second.wait()
    work = dist.all_reduce(values, async_op=True)
    polls = 1
    while not work.is_completed():
        polls += 1
    return {"values": values.numpy(), "polls": polls}


def polling_in_vain(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Rank 0 polls for ever, rank 1 waits for a group that rank 0 never comes to, rank 2 ends."""
    other = dist.new_group([0, 1])
    if rank == 0:
        work = dist.all_reduce(data(rank, 2), async_op=True)
        while not work.is_completed():
            pass
    if rank == 1:
        dist.all_reduce(data(rank, 2), group=other)
    return {}


def polling_a_while(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Rank 0 looks some times, gives up, and then does what rank 1 waits for."""
    other = dist.new_group([0, 1])
    if rank == 0:
        work = dist.all_reduce(data(rank, 2), async_op=True)
        completed = [work.is_completed() for _ in range(100)]
        dist.barrier(other)
        work.wait()
        return {"completed": any(completed)}
    dist.barrier(other)
    dist.all_reduce(data(rank, 2))
    return {"completed": False}


def communicating_from_a_thread(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: what the thread does; the rank then waits for it as one does, which here would be for ever."""
    done: queue.Queue[None] = queue.Queue()
    works = [dist.all_reduce(data(rank, 2), async_op=True)] if payload != "launches" else []

    def work() -> None:
        match payload:
            case "launches":
                dist.all_reduce(data(rank, 2))
            case "waits for":
                works[0].wait()
            case "polls":
                works[0].is_completed()
        done.put(None)

    threading.Thread(target=work, name="communicator", daemon=True).start()
    done.get()
    return {}


def with_a_thread_that_computes(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """A thread that does not communicate is nobody's business; that it can look is not either."""
    told = []
    thread = threading.Thread(target=lambda: told.append((dist.get_rank(), torch.ones(2).sum().item())))
    thread.start()
    thread.join()
    return {"told": told}
