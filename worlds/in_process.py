"""The simulated world in the process that asks, for a debugger: breakpoints work, and nothing supervises the ranks.

What ends a rank's process here ends the whole run, and what hangs, hangs.
"""

from typing import Any

from lockstep.worlds.contract import Job, Outcome
from lockstep.worlds.unmatched import also_unmatched


class InProcessSim:
    """See `worlds.contract.World`."""

    name, device = "sim", "cpu"
    ranks: int | None = None

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self._ranks: dict[int, Any] = {}

    def run(self, job: Job) -> Outcome:
        """One example on threads of this process."""
        from lockstep.worlds.sim.ranks import Ranks

        if job.world_size not in self._ranks:
            self._ranks[job.world_size] = Ranks(job.world_size)
        outcome: Outcome = self._ranks[job.world_size].run(job)
        return also_unmatched(outcome)

    def close(self) -> None:
        """The threads end with the process."""
