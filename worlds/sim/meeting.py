"""The shared state of the simulated ranks in one example: the baton, the timeline, each collective's meeting place."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch

from lockstep.worlds.contract import Collective, Job, RankError
from lockstep.worlds.sim.baton import Baton
from lockstep.worlds.sim.belongings import Household

if TYPE_CHECKING:
    from lockstep.worlds.sim.flight import Flight
    from lockstep.worlds.sim.group import SimGroup
    from lockstep.worlds.sim.log import Entry
    from lockstep.worlds.sim.order import Combiner
    from lockstep.worlds.sim.watch import Watch

Flat: TypeAlias = torch.Tensor  # a collective's input or output on one rank, all tensors of the call end to end

# Of a rank's thread: the .run it takes part in, its global .rank, and .grouped: whether it has its default group.
current = threading.local()


class Mismatch(RuntimeError):
    """Members of a group called different collectives at the same place of the group's sequence."""


class NotRunnable(RuntimeError):
    """The implementation does what this world cannot run, through no fault of its own."""


@dataclass(slots=True)
class Meeting:
    """One collective, as far as its members have arrived, or one message, as far as its ends have.

    Keys: ranks in the group; of a message its ends, see `worlds.sim.messages`. ``source``: the member that sends it.
    """

    calls: dict[int, Collective] = field(default_factory=dict)
    inputs: dict[int, Flat] = field(default_factory=dict)
    flights: "dict[int, Flight]" = field(default_factory=dict)  # where the job has an `Asynchrony`
    results: list[Flat | None] | None = None
    completed: int | None = None  # the time of it
    mismatch: str = ""
    waiting: list[int] = field(default_factory=list)  # global ranks
    source: int | None = None

    @property
    def over(self) -> bool:
        """True if nobody needs to wait any longer."""
        return self.results is not None or bool(self.mismatch)

    def carry_out(self, meaning: "Callable[[dict[int, Flat]], list[Flat | None]]") -> None:
        """All are there: reads what is read late, and writes what is written now."""
        for part, flight in self.flights.items():
            self.inputs[part] = flight.read()
        self.results = meaning(self.inputs)
        for flight in self.flights.values():
            flight.moment()


@dataclass
class Run:
    """The shared state of the groups of all ranks in one example. Lists are by global rank."""

    baton: Baton
    job: Job
    collectives: list[list[Collective]]
    combiner: "Combiner | None" = None
    watches: "list[Watch] | None" = None  # where the job has an `Asynchrony`
    log: "list[list[Entry]] | None" = None  # where the job asks for a timeline or contents
    clock: int = 0
    meetings: dict[tuple[str, int], Meeting] = field(default_factory=dict)  # (group, place in its sequence)
    # By group: sends and receives without their partner, in the order in which they were posted.
    messages: "dict[str, list[tuple[SimGroup, Collective, Meeting]]]" = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)  # what the store has
    awaiting: list[int] = field(default_factory=list)  # global ranks that wait for a key of it
    belongings: Household = field(default_factory=Household)
    failed: bool = False  # whether a rank raised an error of its own: others that then wait are not at fault
    not_runnable: RankError | None = None

    def block(self, rank: int, reason: object) -> None:
        """Lets other ranks run until somebody wakes this one, and gives the rank back what is its own."""
        self.belongings.by_rank[rank].put_away()
        try:
            self.baton.block(rank, reason)
        finally:
            self.belongings.by_rank[rank].take_out()

    def poll(self, rank: int, reason: object) -> None:
        """Lets all others run who can, and gives the rank back what is its own."""
        self.belongings.by_rank[rank].put_away()
        try:
            self.baton.poll(rank, reason)
        finally:
            self.belongings.by_rank[rank].take_out()

    def arrived(self, meeting: Meeting) -> None:
        """Wakes the ranks that need not wait any longer. Raises Mismatch."""
        if meeting.over:
            self.baton.wake(meeting.waiting)
            meeting.waiting = []
        if meeting.mismatch:
            raise Mismatch(meeting.mismatch)

    def now(self) -> int:
        """The time of what takes place now."""
        self.clock += 1
        return self.clock

    def foreign_thread(self, rank: int, does: str) -> NotRunnable:
        """The error for doing this from a thread that is not the rank's."""
        words = f"rank {rank} {does} from a thread of the implementation's own ({threading.current_thread().name})"
        reason = "the simulated world runs each rank on one thread; a real backend has one process for each rank"
        return self.refuse(RankError("not runnable", f"{words}: {reason}"))

    def refuse(self, error: RankError) -> NotRunnable:
        """Ends the example with this error, on every rank and at once. Raise what it gives."""
        if self.not_runnable is None:
            self.not_runnable = error
            self.baton.abandon()
        return NotRunnable(error.message)
