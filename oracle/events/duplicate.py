"""Duplicate: a deep copy of the model."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Duplicate(Event):
    """The caller makes a deep copy of the model, and evaluates, in evaluation mode, each copy that it has made so far.

    A copy keeps the weights that the model had when the copy was made. It is not wrapped. Nothing changes for the
    model.
    """

    while_local: ClassVar[bool] = True

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes nothing."""
