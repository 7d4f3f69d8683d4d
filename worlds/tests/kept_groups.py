"""What ranks do in groups whose connections are kept from example to example."""

from collections.abc import Mapping
from typing import Any

_held: list[Any] = []  # so that no connection has the number of one that is gone


def in_groups(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Adds up in three groups of the same two ranks, each in flight while the next begins, and in one of all.

    ``sums``: what came; ``connections``: which connection each has, as a number that is no other's in this process.
    """
    import torch
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]) for _ in range(3)] + [dist.new_group()]
    if rank > 1:
        groups = groups[-1:]
    values = [torch.tensor([float(10**number * (rank + 1))]) for number in range(len(groups))]
    works = [dist.all_reduce(value, group=group, async_op=True) for value, group in zip(values, groups, strict=True)]
    for work in works:
        work.wait()
    _held.extend(group._real for group in groups)
    return {"sums": [float(value) for value in values], "connections": [id(group._real) for group in groups]}
