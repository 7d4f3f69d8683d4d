"""What ranks launch without its other side, and what comes after it."""

import datetime
import os
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

Result = Mapping[str, Any]

_kept: list[Any] = []  # for gloo forgets a message with its handle


def _other_tags(rank: int) -> Any:
    return dist.isend(torch.full((1,), 99.0), 1, tag=7) if rank == 0 else dist.irecv(torch.zeros(1), 0, tag=9)


def _other_groups(rank: int) -> Any:
    group = dist.new_group([0, 1])
    return dist.all_reduce(torch.full((1,), 99.0), group=group if rank else None, async_op=True)


def _one_more(rank: int) -> Any:
    return dist.all_reduce(torch.full((1,), 99.0), async_op=True) if rank else None


def _from_any_rank(rank: int) -> Any:
    return None if rank == 0 else dist.irecv(torch.zeros(1), tag=7)


UNMATCHED = {"tags": _other_tags, "groups": _other_groups, "one more": _one_more, "from any rank": _from_any_rank}


def leaving_unmatched(payload: str, rank: int, world_size: int) -> Result:
    """Nobody waits for what the payload names."""
    _kept.append(UNMATCHED[payload](rank))
    return {"process": os.getpid()}


def exchanging_handles(payload: str, rank: int, world_size: int) -> Result:
    """Of a message with tag 7, both dropped; with a payload its receiver waits, and its sender keeps its own."""
    work = dist.isend(torch.full((1,), 99.0), 1, tag=7) if rank == 0 else dist.irecv(torch.zeros(1), 0, tag=7)
    if payload and rank == 1:
        work.wait()
    if payload:
        dist.barrier()
    return {"process": os.getpid()}


def exchanging(payload: str, rank: int, world_size: int) -> Result:
    """A sum, and a message with tag 7 from rank 0 to rank 1; with a payload, from whoever sends."""
    values, message = torch.full((1,), float(rank)), torch.full((1,), float(rank))
    dist.all_reduce(values)
    if rank == 0:
        dist.send(message, 1, tag=7)
    elif rank == 1:
        dist.recv(message, None if payload else 0, tag=7)
    return {"values": [values.item(), message.item()], "process": os.getpid()}


def catching_a_failure(payload: str, rank: int, world_size: int) -> Result:
    """Rank 1 comes late to a barrier for which rank 0 does not wait so long."""
    if rank == 1:
        time.sleep(0.3)
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(milliseconds=50))
    except RuntimeError:
        return {"caught": True}
    return {"caught": False}
