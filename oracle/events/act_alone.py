"""ActAlone: one rank acts alone."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class ActAlone(Event):
    """One ``rank`` evaluates the model, takes its state dict, and does nothing with it. The others do neither.

    A rank that validates and saves for all does this. It changes nothing, buffers included.
    """

    while_local: ClassVar[bool] = True

    rank: int

    def check(self, setup: Setup, before: Standing) -> None:
        """The rank exists, and the next broadcast of buffers is certain."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")
        if not 0 <= self.rank < setup.world_size:
            raise ValueError(f"{self!r} takes one of the {setup.world_size} ranks")

    def on_one_rank(self) -> "ActAlone":
        """The same event, on that rank."""
        return replace(self, rank=0)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing."""
