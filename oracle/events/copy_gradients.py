"""CopyGradients: copies take the place of gradients."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class CopyGradients(Event):
    """The caller assigns, on every rank and to each ``.grad`` that is there, another tensor of the same values.

    It may come inside ``no_sync``, with accumulated gradients. It changes no later value.
    """

    while_local: ClassVar[bool] = True

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes no value."""
