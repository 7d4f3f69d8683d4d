"""Evaluate: a forward that no backward follows."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Evaluate(Event):
    """A forward of all parameters on every rank, frozen ones too, that no backward follows: without autograd.

    ``inference``: in torch's inference mode, whose tensors no autograd ever takes. It is in evaluation mode; without
    ``switch`` modules stay in the mode in which they train. Without ``synchronize`` it is inside ``no_sync``. So are
    losses only measured. Nothing changes, and buffers are left alone.
    """

    while_local: ClassVar[bool] = True

    inference: bool = False
    switch: bool = True
    synchronize: bool = True

    @property
    def evaluates(self) -> bool:
        """There is."""
        return True

    def check(self, setup: Setup, before: Standing) -> None:
        """It is clear when buffers are broadcast next."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing."""
