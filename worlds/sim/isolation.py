"""A separate `torch.distributed` for every rank's thread and for the threads that it starts."""

import threading
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg


class RankThread(threading.Thread):
    """The thread that a simulated rank runs on."""


class _WorldOfTheRank(threading.local):
    """The tables of groups in `torch.distributed`, by thread. Every collective reads them several times.

    A thread that a rank started sees its rank's groups, as in a process; the groups then say no by name.
    """

    def __init__(self) -> None:
        """Runs in every thread that asks, at first."""
        rank = getattr(threading.current_thread(), "lockstep_world", None)
        vars(self).update(vars(multi_threaded_pg.ThreadLocalWorld()._get_world()) if rank is None else rank)
        vars(self).setdefault("comms", [])  # torch 2.11's lacks it, and destroy_process_group asks for it


@cache
def isolate_threads() -> None:
    """Once for this process."""
    multi_threaded_pg._install_threaded_pg()
    dist.distributed_c10d._world = _WorldOfTheRank()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    start = threading.Thread.start

    def start_with_the_ranks_world(thread: Any) -> None:
        by = threading.current_thread()
        if isinstance(by, RankThread) or hasattr(by, "lockstep_world"):
            thread.lockstep_world = vars(dist.distributed_c10d._world)
        start(thread)

    threading.Thread.start = start_with_the_ranks_world  # type: ignore[assignment,method-assign]
