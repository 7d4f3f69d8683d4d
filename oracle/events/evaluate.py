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
    """A forward of all parameters on every rank, frozen ones too, without autograd and without a backward.

        inference      it is in torch's inference mode, whose tensors autograd never takes
        switch         modules are in evaluation mode; without it they stay in the mode in which they train
        synchronize    without it, it is inside ``no_sync``

    Training loops measure a loss in this way. It changes nothing, buffers included.
    """

    while_local: ClassVar[bool] = True

    inference: bool = False
    switch: bool = True
    synchronize: bool = True

    @property
    def evaluates(self) -> bool:
        """True: it has one."""
        return True

    def check(self, setup: Setup, before: Standing) -> None:
        """The next broadcast of buffers is certain."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing."""
