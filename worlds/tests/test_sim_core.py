"""Where the threads of simulated ranks run."""

import os
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.worlds.contract import Job
from lockstep.worlds.sim.world import SimWorld


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
