"""The simulated ranks: threads that are kept from one example to the next."""

import contextlib
import itertools
import os
import sys
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.contract import DEFAULT, Collective, Job, Outcome, RankError, RankReport, group_label, raised
from lockstep.worlds.process_tree import Leftovers, end_if_forked
from lockstep.worlds.settings import OF_A_THREAD, Surroundings, imported, surroundings
from lockstep.worlds.sim import futures, profilers
from lockstep.worlds.sim.affinity import Affinity
from lockstep.worlds.sim.baton import Baton, Deadlock
from lockstep.worlds.sim.belongings import Belongings
from lockstep.worlds.sim.group import SimGroup
from lockstep.worlds.sim.isolation import RankThread, isolate_threads
from lockstep.worlds.sim.meeting import Mismatch, Run, current
from lockstep.worlds.sim.order import combiner_of
from lockstep.worlds.sim.store import RankStore, pass_the_baton_in_torchs_stores
from lockstep.worlds.sim.watch import Watch
from lockstep.worlds.stand_in import stand_in


@cache
def _register_backend() -> None:
    dist.Backend.register_backend("sim", _create_group, extended_api=True, devices=["cpu"])
    stand_in("sim")


def _create_group(options: Any, _: Any) -> SimGroup:
    run: Run = current.run
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    label = group_label(members, options.group_id) if current.grouped else DEFAULT
    current.grouped = True
    return SimGroup(options.group_rank, members, label, run)


class Ranks:
    """``size`` rank threads and the baton they pass."""

    def __init__(self, size: int) -> None:
        isolate_threads()
        futures.ask_ranks_first()
        profilers.one_at_a_time()
        pass_the_baton_in_torchs_stores()
        _register_backend()
        self._size = size
        self._baton = Baton(size)
        self._threads = [
            RankThread(target=self._serve, args=(rank,), daemon=True, name=f"rank {rank}") for rank in range(size)
        ]
        for thread in self._threads:
            thread.start()
        self._affinity = Affinity(self._threads)

    def run(self, job: Job) -> Outcome:
        """One example. The job's world size is this many ranks.

        If the outcome says that the job is not runnable, neither is anything else in this process from then on.
        """
        leftovers, found = Leftovers(), surroundings()
        futures.forget()
        self._job, self._function = job, imported(job.function)
        self._run = run = Run(self._baton, job, [[] for _ in range(self._size)], combiner_of(job))
        if job.asynchrony is not None:
            draws = itertools.cycle(job.asynchrony.draws)
            run.watches = [Watch(rank, job.asynchrony, draws) for rank in range(self._size)]
        if job.timeline or job.contents:
            run.log = [[] for _ in range(self._size)]
        self._reports: list[RankReport | None] = [None] * self._size
        self._affinity.gather()
        self._baton.run()
        if run.belongings.possessions is not None:
            run.belongings.possessions.give_back()
        if run.not_runnable is not None:
            return (RankReport(None, run.not_runnable),) * self._size
        first, *others = (report for report in self._reports if report is not None)
        if left := (*leftovers.list(), *found.restore()):
            # Whose they are is not known, since all ranks are one process: the first rank tells.
            first = replace(first, left=(*left, *first.left))
        return first, *others

    def _serve(self, rank: int) -> None:
        torch.set_num_threads(1)
        with torch.autograd.set_multithreading_enabled(False):
            found = Surroundings(OF_A_THREAD)
            while True:
                self._baton.await_turn(rank)
                self._baton.end(rank, self._example(rank, found))

    def _example(self, rank: int, found: Surroundings) -> object:
        """Runs this rank's part and files its report. Returns how it ended, in words."""
        result, error, run, process = None, None, self._run, os.getpid()
        how: object = Ended(run.collectives[rank])
        current.run, current.rank, current.grouped = run, rank, False
        belongings = Belongings(rank, self._size, run.belongings)
        belongings.take_out()
        watch = None if run.watches is None else run.watches[rank]
        # Called through `partial`, so that the function's frame is off the stack when its variables go (Python 3.11).
        function = partial(self._function, self._job.payload, rank, self._size)
        try:
            with watch or contextlib.nullcontext():
                store = RankStore(run, rank)
                dist.init_process_group("sim", store=store, rank=rank, world_size=self._size)
                result = function()
        except BaseException as exception:  # SystemExit too: a rank that exits is a finding
            error = _describe(exception, run)
            how = error.message if error.kind == "mismatch" else f"raised {error.message}"
            if error.kind == "raised":
                run.failed = True
        finally:
            end_if_forked(process, error)
            if watch is not None:
                watch.over = True
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.excepthook = sys.__excepthook__  # each init_process_group wraps the last one's
            belongings.put_away()
        log, collectives = run.log[rank] if run.log is not None else [], run.collectives[rank]
        if self._job.contents:
            for entry in log:
                collectives[entry.place] = entry.with_contents()
        timeline = tuple(entry.passage() for entry in log) if self._job.timeline else ()
        hazards = () if watch is None else tuple(watch.hazards)
        self._reports[rank] = RankReport(result, error, tuple(collectives), tuple(found.restore()), timeline, hazards)
        return how


class Ended:
    """The end of a rank's part without an error, reported only if somebody waits for it."""

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
