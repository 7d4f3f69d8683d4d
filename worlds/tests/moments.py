"""What ranks run in the tests of asynchrony: they look at what is in flight, moment by moment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.worlds.tests.exchanges import data


def looking_all_the_time(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Changes an input, past torch, between launch and completion, and tells what an output holds at each moment."""
    source, output, seen = data(rank, 2), torch.zeros(2 * world_size).double(), list[Any]()
    work = dist.all_gather_into_tensor(output, source, async_op=True)
    watched, changed = output.numpy(), source.numpy()
    seen.append(watched.copy())
    changed += 100
    for _ in range(3):
        dist.barrier()
        seen.append(watched.copy())
    work.wait()
    return {"seen": [*seen, watched.copy()]}


def looking_at_messages(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The same of a message to the other rank, and of one from there."""
    source, output, seen = data(rank, 2), torch.zeros(2).double(), list[Any]()
    works = [dist.isend(source, 1 - rank), dist.irecv(output, 1 - rank)]
    watched, changed = output.numpy(), source.numpy()
    seen.append(watched.copy())
    changed += 100
    for _ in range(3):
        dist.barrier()
        seen.append(watched.copy())
    for work in works:
        work.wait()
    return {"seen": [*seen, watched.copy()]}


def looking_while_polling(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What an output holds after each successful poll of another collective."""
    source, output, other, seen = data(rank, 2), torch.zeros(2 * world_size).double(), data(rank, 1), list[Any]()
    works = [dist.all_gather_into_tensor(output, source, async_op=True), dist.all_reduce(other, async_op=True)]
    watched = output.numpy()
    while not works[1].is_completed():
        pass
    for _ in range(4):
        seen.append(not np.isnan(watched).any())
        works[1].is_completed()
    for work in works:
        work.wait()
    return {"seen": seen}


def poisoned(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Outputs of several dtypes before the wait, of which one is in part an input."""
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    outputs = [torch.zeros(world_size, dtype=dtype) for dtype in dtypes]
    works = [dist.all_gather_into_tensor(output, output[rank : rank + 1], async_op=True) for output in outputs]
    before = [output.detach().view(torch.uint8).numpy().copy() for output in outputs]
    floats = outputs[0].numpy().copy()
    for work in works:
        work.wait()
    return {"before": before, "floats": floats, "after": [output.double().numpy() for output in outputs]}
