"""What ranks run in the tests of reduction orders: collectives that reduce, on floats that round at almost each hop."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.oracle.collectives import Array
from lockstep.properties.ranks.plain_collectives import REDUCTIONS


def floats(rank: int, elements: int, dtype: str) -> Array:
    """Over nine binades, different on every rank: in float64, or in float32, from which 16 bits are rounded once."""
    random = np.random.default_rng([rank, elements])
    values: Array = random.standard_normal(elements) * 2.0 ** random.integers(-4, 5, elements)
    return values if dtype == "float64" else values.astype(np.float32)


def reduced(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: a list of ``(collective, reduction, dtype, elements)``. Gives the bits that this rank has after each."""
    odd = dist.new_group(range(1, world_size))
    return {"bits": [_reduce(rank, world_size, odd, *what) for what in json.loads(payload)]}


def _reduce(rank: int, world_size: int, odd: Any, collective: str, reduction: str, dtype: str, elements: int) -> bytes:
    mine, operation = torch.tensor(floats(rank, elements, dtype)).to(getattr(torch, dtype)), REDUCTIONS[reduction]
    match collective:
        case "all_reduce":
            dist.all_reduce(mine, operation)
        case "all_reduce_coalesced":
            dist.all_reduce_coalesced(list(mine.split([elements // 3, elements - elements // 3])), operation)
        case "reduce":
            dist.reduce(mine, world_size - 1, operation)
            mine = mine if rank == world_size - 1 else mine[:0]
        case "reduce_scatter_tensor":
            whole, mine = mine, mine.new_empty(elements // world_size)
            dist.reduce_scatter_tensor(mine, whole, operation)
        case "all_reduce of a subgroup":
            if rank:
                dist.all_reduce(mine, operation, group=odd)
    return mine.view(torch.uint8).numpy().tobytes() if mine.numel() else b""
