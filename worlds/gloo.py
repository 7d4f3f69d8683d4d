"""The gloo world: one warm process per rank, real sockets, real autograd threads.

Processes are started once and serve every world size up to their number; the gloo group of each size is kept too. An
example gets a fresh default group in `torch.distributed` that records each collective and hands it to the kept one.
A rank that dies, hangs or leaves a collective unmatched may have spoiled the group for good, so then the whole pool is
replaced, and the next example runs on a sound one.
"""

import datetime
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from worlds import process
from worlds.contract import Collective, Job, Outcome, RankError, RankReport, raised, resolve

# Once a rank has failed, or all others have answered, nobody can help the rest: how long they may still take, in
# seconds. Long against any scheduling delay, short against the limit of an example.
PATIENCE = 10.0


class GlooWorld:
    """See `worlds.contract.World`."""

    name = "gloo"

    def __init__(self, limit: float = 30.0) -> None:
        self.limit = limit
        self._pool: list[process.Child] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._examples = itertools.count()
        self._served = 0  # examples that this pool has run

    def run(self, job: Job) -> Outcome:
        """One example on the first ``world_size`` processes of the pool."""
        if self._served >= process.LIFETIME:
            self.close()
        if self._folder is None:
            self._served = 0
            self._folder = tempfile.TemporaryDirectory(prefix="lockstep-gloo-")
        store = str(Path(self._folder.name) / "store")
        new = [process.Child(_serve, rank, store, self.limit) for rank in range(len(self._pool), job.world_size)]
        self._pool += new
        for child in new:
            child.await_start()
        self._served += 1
        children, number = self._pool[: job.world_size], next(self._examples)
        for child in children:
            child.send((number, job))
        reports = self._collect(children, job.limit or self.limit)
        outcome = tuple(reports[rank] for rank in range(job.world_size))
        if any(report.error for report in outcome) or _left_over(outcome):
            self.close()
        return outcome

    def _collect(self, children: list[process.Child], limit: float) -> dict[int, RankReport]:
        reports: dict[int, RankReport] = {}
        began = time.monotonic()
        deadline = began + limit
        missing = dict(enumerate(children))
        while missing and (ready := process.wait(list(missing.values()), deadline - time.monotonic())):
            for rank in [rank for rank, child in missing.items() if child in ready]:
                child = missing.pop(rank)
                try:
                    reports[rank] = child.receive()
                except process.Died as died:
                    reports[rank] = RankReport(None, RankError("died", f"its process {died}", child.output()))
            if len(missing) == 1 or any(report.error for report in reports.values()):
                deadline = min(deadline, time.monotonic() + PATIENCE)
        failed = any(report.error for report in reports.values())
        for rank, child in missing.items():
            waited = time.monotonic() - began
            message = "still waited when the example was ended" if failed else f"gave no answer within {waited:.0f} s"
            error = RankError("abandoned" if failed else "timeout", message, child.stacks())
            reports[rank] = RankReport(None, error)
        return reports

    def close(self) -> None:
        """Ends every process of the pool; the next run starts another."""
        for child in self._pool:
            child.kill()
        self._pool = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _left_over(outcome: Outcome) -> bool:
    """Whether a rank launched what no other did, and the next example would meet it."""
    operations = [[collective.operation for collective in report.collectives] for report in outcome]
    sent, received = (sum(each.count(end) for each in operations) for end in ("send", "recv"))
    collectives = {len(each) - each.count("send") - each.count("recv") for each in operations}
    return sent != received or len(collectives) > 1


def _serve(connection: Connection, rank: int, store_path: str, limit: float) -> None:
    """One rank's process: a job in, a report out. torch is imported here only, not in the supervisor."""
    import torch
    import torch.distributed as dist

    from worlds.collectives import DescribedGroup, Tensors, flatten, to_numpy
    from worlds.fresh import fresh_state
    from worlds.stand_in import stand_in

    torch.set_num_threads(1)
    file_store = dist.FileStore(store_path, -1)
    # The supervisor's clock decides what hangs, not gloo's.
    patience = datetime.timedelta(seconds=10 * limit)
    kept: dict[int, dist.ProcessGroupGloo] = {}  # world size -> gloo's group of that many ranks
    timeline: list[Collective] = []
    contents = grouped = False

    class GlooGroup(DescribedGroup):
        """Records what it is asked for and lets gloo do it."""

        def __init__(self, rank: int, members: tuple[int, ...], label: str, gloo: dist.ProcessGroupGloo) -> None:
            super().__init__(rank, members, label)
            self._gloo = gloo
            # C++ code that asks a group named gloo for its backend (DDP's logger) must find it.
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)

        def getBackendName(self) -> str:  # noqa: N802, c10d's name
            return "gloo"

        def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
            sent = to_numpy(flatten(inputs)) if contents else None
            timeline.append(replace(call, sent=sent))
            work: dist.Work = again(self._gloo)
            return work

        def exchange(self, call: Collective, tensors: Tensors, again: Callable[[Any], Any]) -> dist.Work:
            return self.launch(call, tensors if call.operation == "send" else [], tensors, again)

    def create(options: Any, _: Any) -> DescribedGroup:
        nonlocal grouped
        default, grouped = not grouped, True
        rank, size = options.group_rank, options.group_size
        if not default:
            members = tuple(options.global_ranks_in_group)
            gloo = dist.ProcessGroupGloo(options.store, rank, size, patience)
            return GlooGroup(rank, members, f"ranks {','.join(map(str, members))}, {options.group_id}", gloo)
        if size not in kept:
            kept[size] = dist.ProcessGroupGloo(dist.PrefixStore(f"world of {size}", file_store), rank, size, patience)
        return GlooGroup(rank, tuple(range(size)), "default", kept[size])

    dist.Backend.register_backend("lockstep_gloo", create, extended_api=True, devices=["cpu"])
    stand_in("lockstep_gloo")
    while True:
        number, job = connection.recv()
        timeline, contents, grouped = [], job.contents, False
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world_size))
        result, error = None, None
        fresh_state()
        try:
            store = dist.PrefixStore(f"example {number}", file_store)
            dist.init_process_group("lockstep_gloo", store=store, rank=rank, world_size=job.world_size)
            result = resolve(job.function)(job.payload, rank, job.world_size)
        except BaseException as exception:  # SystemExit too: a rank that exits is a finding
            error = raised(exception)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.excepthook = sys.__excepthook__  # each init_process_group wraps the last one's
        connection.send(RankReport(result, error, tuple(timeline)))
