"""ActAlone: one rank does what the others do not."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class ActAlone(Event):
    """One ``rank`` evaluates the model and takes its state dict, with which it does nothing; the others do neither.

    So does one rank validate and save for all. Nothing changes, and buffers are left alone.
    """

    while_local: ClassVar[bool] = True

    rank: int

    def check(self, setup: Setup, before: Standing) -> None:
        """The rank exists, and it is clear when buffers are broadcast next."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")
        if not 0 <= self.rank < setup.world_size:
            raise ValueError(f"{self!r} takes one of the {setup.world_size} ranks")

    def on_one_rank(self) -> "ActAlone":
        """It is that one's."""
        return replace(self, rank=0)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing."""
