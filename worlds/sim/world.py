"""The simulated world from outside: one supervised process, kept warm, that runs all ranks of an example."""

from multiprocessing.connection import Connection

from lockstep.worlds import process
from lockstep.worlds.contract import Job, Outcome, RankError, RankReport, also_lost
from lockstep.worlds.unmatched import also_unmatched


def _serve(connection: Connection) -> None:
    """The child's loop: a job in, an outcome out."""
    from lockstep.worlds.sim.belongings import inherit
    from lockstep.worlds.sim.ranks import Ranks  # torch is imported in the child only

    inherit()
    ranks: dict[int, Ranks] = {}
    while True:
        job = connection.recv()
        if job.world_size not in ranks:
            ranks[job.world_size] = Ranks(job.world_size)
        connection.send(ranks[job.world_size].run(job))


class SimWorld:
    """See `worlds.contract.World`."""

    name, device = "sim", "cpu"
    ranks: int | None = None

    def __init__(self, limit: float = 10.0) -> None:
        self.limit = limit
        self._child: process.Child | None = None
        self._served = 0  # examples that this child has run

    def run(self, job: Job) -> Outcome:
        """One example; a child that hangs or dies is replaced, and every rank's report says so."""
        lost = "" if self._child is None else self._child.ended()
        if self._served >= process.LIFETIME or lost:
            self.close()
        if self._child is None:
            self._served = 0
            self._child = process.Child(_serve)
            self._child.await_start()
        child = self._child
        self._served += 1
        limit = job.limit or self.limit
        try:
            child.send(job)
            clock = process.Clock(limit)
            while not (answered := process.wait([child], clock.until_look())) and not clock.is_over([child]):
                pass
        except BaseException:  # Ctrl-C: the answer to this example may still come, so nobody may read on
            self.close()
            raise
        if answered:
            try:
                outcome = also_lost(child.receive(), lost)
                if any(report.left or (report.error and report.error.kind == "not runnable") for report in outcome):
                    self.close()
                return also_unmatched(outcome)  # which no later example meets: each has a run of its own
            except process.Died as died:
                error = RankError("died", f"the process that runs all simulated ranks {died}", child.output())
        else:
            error = RankError("timeout", f"no answer within {limit:g} s", child.stacks())
        self.close()
        return tuple(RankReport(None, error) for _ in range(job.world_size))

    def close(self) -> None:
        """Ends the process; the next run starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None
