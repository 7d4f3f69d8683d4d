"""SaveAndLoad: everything is built anew and loads its saved state."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle import hyperparameters
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State, begin_optimizer, drop_gradients


@dataclass(frozen=True, repr=False)
class SaveAndLoad(Event):
    """Each rank saves the state of model, optimizer and loss scale; everything is built anew, wrapped, and loaded.

    It is built with other initial values. Only gradients change: there are none. Without ``optimizer`` only the weights
    are saved and loaded. The optimizer, its hyper-parameters, masters (from the loaded weights) and loss scale begin
    afresh.
    """

    shows: ClassVar[str] = "parameters"
    builds: ClassVar[bool] = True

    optimizer: bool = True

    @property
    def ends_gradients(self) -> bool:
        """It does."""
        return True

    def after(self, setup: Setup, before: Standing) -> Standing:
        """All is as just built, and nothing that was saved before is there."""
        settings = before.settings if self.optimizer else hyperparameters.at_the_start(setup)
        return before.without_gradients()._replace(
            settings=settings, saved=None, unscaled=False, when_wrapped=before.trained
        )

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Drops gradients; and the optimizer begins afresh, if it was not saved."""
        drop_gradients(state)
        state.broadcast_due = True
        state.unscaled = state.skip = False
        if not self.optimizer:
            begin_optimizer(state)
