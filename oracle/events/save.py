"""Save: for a later Load."""

from dataclasses import dataclass

from lockstep.oracle import state as states
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Save(Event):
    """Each rank saves the state of model, optimizer and loss scale, for a later Load. Nothing changes."""

    def after(self, setup: Setup, before: Standing) -> Standing:
        """There is something to load."""
        return before._replace(saved=before.settings)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Keeps all."""
        states.save(state)
