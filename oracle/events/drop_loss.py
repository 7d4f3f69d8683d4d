"""DropLoss: a forward of training that no backward follows."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class DropLoss(Event):
    """A forward on every rank, with autograd and in the mode in which modules train, whose loss the caller drops.

    It is a micro-batch of NaN in which every trained parameter takes part. Without ``synchronize`` it is inside
    ``no_sync``. It changes nothing, buffers included.
    """

    while_local: ClassVar[bool] = True

    synchronize: bool = True

    def check(self, setup: Setup, before: Standing) -> None:
        """Something is trained, and the next broadcast of buffers is certain."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")
        if not before.trained:
            raise ValueError(f"{self!r} has no loss, as no parameter is trained")

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing."""
