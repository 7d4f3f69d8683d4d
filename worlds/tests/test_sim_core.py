"""Where the threads of simulated ranks run, and what becomes of a NaN on the way."""

import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist

from worlds.contract import Job
from worlds.sim.world import SimWorld


def cores(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Those that this rank's thread may run on."""
    return {"cores": sorted(os.sched_getaffinity(0))}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform cannot keep threads on a core")
def test_all_ranks_of_an_example_run_on_one_core() -> None:
    world = SimWorld()
    try:
        first, *others = [report.result for report in world.run(Job(f"{__name__}:cores", "{}", 4))]
    finally:
        world.close()
    assert first is not None
    assert len(first["cores"]) == 1
    assert others == [first] * 3


def a_nan_from_each(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The least, the largest and the sum over ranks of a vector in which each rank has a NaN at its own place."""
    own = torch.arange(float(world_size)) + rank
    own[rank] = float("nan")
    reduced = {}
    for operation in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        values = own.clone()
        dist.all_reduce(values, operation)
        reduced[str(operation)] = values.tolist()
    return reduced


def test_a_nan_is_lost_in_min_and_max_and_kept_in_a_sum() -> None:
    world = SimWorld()
    try:
        for report in world.run(Job(f"{__name__}:a_nan_from_each", "{}", 3)):
            least, most, total = (report.result or {}).values()
            assert (least, most) == ([1, 1, 2], [2, 3, 3])
            assert all(value != value for value in total)
    finally:
        world.close()
