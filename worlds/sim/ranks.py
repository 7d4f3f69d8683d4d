"""The simulated ranks: threads that are kept from one example to the next."""

import sys
import threading
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg

from worlds.contract import Collective, Job, Outcome, RankError, RankReport, raised, resolve
from worlds.fresh import fresh_state
from worlds.sim.baton import Baton, Deadlock
from worlds.sim.belongings import Belongings
from worlds.sim.group import SimGroup, foreign_thread
from worlds.sim.meeting import Mismatch, Run
from worlds.stand_in import stand_in


@cache
def isolate_threads() -> None:
    """Gives every rank a `torch.distributed` of its own, once for this process, and registers the backend "sim"."""
    multi_threaded_pg._install_threaded_pg()
    dist.distributed_c10d._world = OfRanks()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    dist.Backend.register_backend("sim", _create_group, extended_api=True, devices=["cpu"])
    stand_in("sim")


class OfRanks(multi_threaded_pg.ThreadLocalWorld):
    """What `torch.distributed` knows, for each rank's thread; a thread that a rank has started has none."""

    def _get_world(self) -> Any:
        try:
            return self._world.world  # asked for several times in every collective
        except AttributeError:
            thread = threading.current_thread()
            if thread is not threading.main_thread() and not hasattr(_current, "run"):
                foreign_thread(thread.name)
            return super()._get_world()


_current = threading.local()  # of a rank's thread: the .run it takes part in, and .grouped: has its default group


def _create_group(options: Any, _: Any) -> SimGroup:
    run: Run = _current.run
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    label = f"ranks {','.join(map(str, members))}, {options.group_id}" if _current.grouped else "default"
    _current.grouped = True
    return SimGroup(options.group_rank, members, label, run)


class Ranks:
    """``size`` rank threads and the baton they pass."""

    def __init__(self, size: int) -> None:
        isolate_threads()
        self._size = size
        self._baton = Baton(size)
        for rank in range(size):
            threading.Thread(target=self._serve, args=(rank,), daemon=True, name=f"rank {rank}").start()

    def run(self, job: Job) -> Outcome:
        """One example. The job's world size is this many ranks."""
        self._job, self._function = job, resolve(job.function)
        self._run = Run(self._baton, job.contents, job.at_once, [[] for _ in range(self._size)])
        self._store = dist.HashStore()
        self._reports: list[RankReport | None] = [None] * self._size
        self._baton.run()
        return tuple(report for report in self._reports if report is not None)

    def _serve(self, rank: int) -> None:
        torch.set_num_threads(1)
        with torch.autograd.set_multithreading_enabled(False):
            while True:
                self._baton.await_turn(rank)
                self._baton.end(rank, self._example(rank))

    def _example(self, rank: int) -> object:
        """Runs this rank's part and files its report. Returns how it ended, in words."""
        result, error = None, None
        how: object = Ended(self._run.timeline[rank])
        _current.run, _current.grouped = self._run, False
        fresh_state()
        self._run.belongings[rank] = Belongings(rank, self._size)
        self._run.belongings[rank].take_out()
        try:
            dist.init_process_group("sim", store=self._store, rank=rank, world_size=self._size)
            result = self._function(self._job.payload, rank, self._size)
        except BaseException as exception:  # SystemExit too: a rank that exits is a finding
            error = _describe(exception, self._run)
            how = error.message if error.kind == "mismatch" else f"raised {error.message}"
            if error.kind == "raised":
                self._run.failed = True
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.excepthook = sys.__excepthook__  # each init_process_group wraps the last one's
        self._reports[rank] = RankReport(result, error, tuple(self._run.timeline[rank]))
        return how


class Ended:
    """How a rank's part ended without an error, told only if somebody waits for it."""

    def __init__(self, timeline: list[Collective]) -> None:
        self._timeline = timeline

    def __str__(self) -> str:
        if not self._timeline:
            return "has ended without any collective"
        last, group = self._timeline[-1], self._timeline[-1].group
        place = sum(each.group == group for each in self._timeline)
        return f"has ended after {last}, call {place} in the {group} group"


def _describe(exception: BaseException, run: Run) -> RankError:
    error = raised(exception)
    if isinstance(exception, Mismatch):
        return replace(error, kind="mismatch", message=str(exception))
    if isinstance(exception, Deadlock):
        return replace(error, kind="abandoned" if run.failed else "deadlock", message=str(exception))
    return error
