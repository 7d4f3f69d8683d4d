"""Write: the caller writes into tensors of the model."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Write(Event):
    """The caller writes 0 - p in the place of p, for some parameters and on every rank, in place and past autograd.

    Training loops clip weights, average into them, or load them by hand in this way. There are no masters, which would
    have to follow. Nothing else changes.
    """

    shows: ClassVar[str] = "parameters"

    parameters: tuple[int, ...]

    def check(self, setup: Setup, before: Standing) -> None:
        """It names tensors, and there are no masters."""
        if setup.masters:
            raise ValueError(f"{self!r} comes where there are masters, which do not hear of it: have none")
        setup.check_tensors(self, self.parameters)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Each of their elements becomes its negative."""
        for parameter in self.parameters:
            state.weights.put(parameter, -state.weights.get(parameter))
