"""A baton that the ranks pass: exactly one rank runs, and gives the baton up only when it blocks or ends.

So a run is the same every time, and a deadlock needs no clock: it is there when no rank is left that could run.
"""

from _thread import allocate_lock
from collections import deque
from collections.abc import Iterable

from lockstep.worlds.sim.turn import turn

# Looks at collectives that are not done, for each rank, while nothing takes place on any: then it never will.
PATIENCE = 1000


class Deadlock(RuntimeError):
    """No rank can run any more, and some have not ended. The message names the reason of each wait."""


class Baton:
    """For the ranks 0 .. size - 1 of one run after another."""

    def __init__(self, size: int) -> None:
        self._turn = [turn() for _ in range(size)]
        self._over = allocate_lock()  # which Ctrl-C interrupts
        self._over.acquire()
        self._ready: deque[int] = deque()
        self._reasons: dict[int, object] = {}
        self._polls: dict[int, object] = {}
        self._ended: dict[int, object] = {}
        self._deadlock = ""
        self.fruitless = 0  # polls since something last took place; whoever does something sets it to 0

    def run(self) -> None:
        """Lets every rank that waits in `await_turn` run to its `end`."""
        self._ready = deque(range(len(self._turn)))
        self._reasons, self._polls, self._ended, self._deadlock = {}, {}, {}, ""
        self.fruitless = 0
        self._hand_on()
        self._over.acquire()

    def abandon(self) -> None:
        """Lets `run` return although ranks have not ended; nobody may run on this baton again."""
        self._over.release()

    def await_turn(self, rank: int) -> None:
        """Parks a rank's thread until its next run begins."""
        self._turn[rank].acquire()

    def block(self, rank: int, reason: object) -> None:
        """Gives the baton up until somebody wakes this rank. Raises Deadlock if nobody can.

        ``str(reason)``, what the rank waits for, stands in the report of a deadlock.
        """
        if self._deadlock:
            raise Deadlock(self._deadlock)
        self._reasons[rank] = reason
        self._hand_on()
        self._turn[rank].acquire()
        if self._deadlock:
            raise Deadlock(self._deadlock)

    def poll(self, rank: int, reason: object) -> None:
        """Let all other ranks that can run do so, and return. Raises Deadlock if polling can never help any more."""
        if self._deadlock:
            raise Deadlock(self._deadlock)
        self._polls[rank] = reason
        self.fruitless += 1
        if self.fruitless > PATIENCE * len(self._turn):
            self._declare_deadlock()
        elif self._ready:
            self._ready.append(rank)
            self._hand_on()
            self._turn[rank].acquire()
        del self._polls[rank]
        if self._deadlock:
            raise Deadlock(self._deadlock)

    def wake(self, ranks: Iterable[int]) -> None:
        """Let these ranks run again, in this order: what they waited for is there.

        One that has been told of a deadlock since waits no longer.
        """
        self.fruitless = 0
        for rank in ranks:
            if self._reasons.pop(rank, None) is not None:
                self._ready.append(rank)

    def end(self, rank: int, how: object) -> None:
        """The rank's last act in this run; ``str(how)``, how it ended, stands in the report of a deadlock."""
        self._ended[rank], self.fruitless = how, 0
        self._hand_on()

    def _hand_on(self) -> None:
        """The last thing that whoever has the baton does before it waits: the next one runs at once."""
        if not self._ready and self._reasons:
            self._declare_deadlock()
        if self._ready:
            self._turn[self._ready.popleft()].release()
        else:
            self._over.release()

    def _declare_deadlock(self) -> None:
        """Wakes every rank that waits, to be told."""
        self._deadlock = self._deadlock or "; ".join(
            f"rank {rank} {self._does(rank)}" for rank in range(len(self._turn))
        )
        self._ready.extend(self._reasons)
        self._reasons = {}

    def _does(self, rank: int) -> str:
        if rank in self._ended:
            return str(self._ended[rank])
        return f"waits for {self._reasons[rank]}" if rank in self._reasons else f"polls {self._polls[rank]}"
