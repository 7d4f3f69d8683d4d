"""The number of collectives that a rank has launched by the time each gradient is final."""

from contextlib import AbstractContextManager
from typing import Any

from lockstep.oracle.events import Event
from lockstep.properties.ranks.program import run_program
from lockstep.properties.ranks.rank import Rank
from lockstep.properties.seen import Seen


class Launching(Rank):
    """A rank that counts its launched collectives. ``launched``: see `note_program`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen["launched"] = {}

    def during(self, event: Event) -> AbstractContextManager[object]:
        """Record the count at the beginning of a micro-batch, before its forward."""
        if event.makes_gradients:
            self.seen["launched"][self.place] = [(-1, self.issued())]
        return super().during(event)

    def fired(self, index: int) -> None:
        """Called before any hook of the implementation."""
        super().fired(index)
        self.seen["launched"][self.place].append((index, self.issued()))


def note_program(payload: str, rank: int, world_size: int) -> Seen:
    """As `properties.ranks.program.run_program`, with the number of collectives ``launched`` in each Backward.

    The number is recorded at its beginning, under parameter -1, and whenever the hook of a parameter fires.
    """
    return run_program(payload, rank, world_size, Launching)
