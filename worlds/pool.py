"""A pool of warm processes, one per rank, seen from outside: the common part of the gloo, NCCL and torchrun worlds.

Processes are started once and serve every world size up to their number. A rank that dies, hangs or leaves something
behind may have spoiled the group for good. The whole pool is then replaced, and the next example runs on a sound one.
"""

import itertools
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lockstep.worlds import process
from lockstep.worlds.blame import blame, disagreement
from lockstep.worlds.contract import Job, Outcome, RankError, RankReport, also_lost
from lockstep.worlds.serving import Setup, serve
from lockstep.worlds.unmatched import also_unmatched

# Once a rank has failed, or all others have answered, nobody can help the rest: how long they may still take, in
# seconds. Long against any scheduling delay, short against the limit of an example.
PATIENCE = 10.0
# Seconds that a new pool's first example may take longer on GPUs, which are set up in it.
COLD = 30.0


class PoolWorld:
    """See `worlds.contract.World`. ``memory``: bytes that one rank may hold."""

    def __init__(self, setup: Setup, ranks: int | None = None, memory: int | None = None) -> None:
        self.name, self.device, self.ranks, self.limit = setup.backend, setup.device, ranks, setup.limit
        self.memory = memory or (process.MEMORY if setup.device == "cpu" else process.MEMORY_WITH_DEVICE)
        self._setup = setup
        self._pool: list[process.Child] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._examples = itertools.count()
        self._served = 0  # examples that this pool has run
        self._met: set[int] = set()  # world sizes of which its processes have a group

    def run(self, job: Job) -> Outcome:
        """One example on the first ``world_size`` processes of the pool."""
        if self.ranks is not None and job.world_size > self.ranks:
            raise ValueError(f"the {self.name} world has {self.ranks} ranks here, so none of {job.world_size} can run")
        try:
            # A rank that has died since the last example is no failure of this one, but is told with it.
            lost = next(filter(None, (child.ended() for child in self._pool)), "")
            if self._served >= process.LIFETIME or lost:
                self.close()
            try:
                self._make_ready(job.world_size)
            except process.Died as died:
                lost = lost or str(died)
                self.close()
                self._make_ready(job.world_size)
            self._served += 1
            children, number = self._pool[: job.world_size], next(self._examples)
            for child in children:
                child.send((number, job))
            cold = COLD if self.device == "cuda" and self._served == 1 else 0.0
            reports = self._collect(children, (job.limit or self.limit) + cold)
        except BaseException:  # Ctrl-C: answers to this example may still come, so nobody may read on
            self.close()
            raise
        outcome = also_lost(also_unmatched(tuple(reports[rank] for rank in range(job.world_size))), lost)
        if any(report.error or report.left for report in outcome):
            self.close()
        return outcome

    def _make_ready(self, size: int) -> None:
        """So many ranks that serve and are connected. Raises Died."""
        self._grow(size)
        if size not in self._met:
            self._meet(size)
            self._met.add(size)

    def _grow(self, size: int) -> None:
        """Starts the processes that are missing for so many ranks."""
        if self._folder is None:
            self._served = 0
            self._met = set()
            self._folder = process.new_folder()
            self._setup = replace(self._setup, store=self.new_store(Path(self._folder.name)))
        if missing := range(len(self._pool), size):
            self.prepare(size)
        new = [self.start(rank, replace(self._setup, rank=rank)) for rank in missing]
        self._pool += new
        for child in new:
            child.memory = self.memory
            child.await_start()

    def _meet(self, size: int) -> None:
        """Lets so many ranks connect, so that no example pays for that."""
        children = self._pool[:size]
        for child in children:
            child.send(size)
        deadline = time.monotonic() + process.START_LIMIT
        missing = {*children}
        while missing:
            if not (ready := process.wait([*missing], deadline - time.monotonic())):
                raise process.Died(f"did not connect {size} ranks within {process.START_LIMIT:g} s")
            for child in ready:
                child.receive()
                missing.remove(child)

    def new_store(self, folder: Path) -> str:
        """The store in which the processes of a new pool meet: a file, which needs no port."""
        return f"file:{folder / 'store'}"

    def prepare(self, size: int) -> None:
        """Prepare what the processes of that many ranks share."""
        process.prepare(size)

    def start(self, rank: int, setup: Setup) -> process.Child:
        """Starts the process of one rank."""
        return process.Child(serve, setup, rank=rank)

    def _collect(self, children: list[process.Child], limit: float) -> dict[int, RankReport]:
        """Every rank's report, once all have answered or waiting for the rest is hopeless."""
        reports: dict[int, RankReport] = {}
        clock = process.Clock(limit)
        missing = dict(enumerate(children))
        while missing:
            ready = process.wait(list(missing.values()), clock.until_look())
            if not ready and (clock.is_over(missing.values()) or _disagree(reports, missing)):
                break
            for rank in [rank for rank, child in missing.items() if child in ready]:
                child = missing.pop(rank)
                try:
                    reports[rank] = child.receive()
                except process.Died as died:
                    reports[rank] = RankReport(None, RankError("died", f"its process {died}", child.output()))
            if reports and (len(missing) == 1 or any(report.error for report in reports.values())):
                clock.deadline = min(clock.deadline, time.monotonic() + PATIENCE)
        if not missing and not any(report.error for report in reports.values()):
            return reports
        silent = {
            rank: children[rank].progress()
            for rank in range(len(children))
            if rank in missing or not reports[rank].collectives
        }
        stacks = {rank: child.stacks() for rank, child in missing.items()}
        return blame(reports, silent, stacks, clock.ran())

    def close(self) -> None:
        """Ends every process of the pool; the next run starts another."""
        for child in self._pool:
            child.kill()
        self._pool = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _disagree(reports: Mapping[int, RankReport], missing: Mapping[int, process.Child]) -> bool:
    """True if ranks wait in different collectives. It is read twice, since a rank may be writing its progress."""
    looks = ({rank: child.progress() for rank, child in missing.items()} for _ in range(2))
    first, again = (disagreement(reports, look) for look in looks)
    return first != "" and first == again
