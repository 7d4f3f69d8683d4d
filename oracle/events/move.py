"""Move: the model's tensors go to new memory."""

from dataclasses import dataclass

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Move(Event):
    """The model's parameters, their gradients and its buffers go to new memory, as ``.to(device)`` moves them.

    The parameters stay the same objects, with the same values. Nothing else changes.
    """

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes no value."""
