"""SwapWeights: an evaluation with other weights."""

from dataclasses import dataclass

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class SwapWeights(Event):
    """The caller writes other weights over all parameters, evaluates the model, and writes the old ones back.

    Averages of the weights are evaluated in this way. The caller writes past autograd, on every rank. It changes
    nothing in the end, buffers included.
    """

    def check(self, setup: Setup, before: Standing) -> None:
        """The next broadcast of buffers is certain."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing in the end."""
