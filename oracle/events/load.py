"""Load: go back to the last Save."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle import hyperparameters
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State, begin_optimizer, drop_gradients, go_back


@dataclass(frozen=True, repr=False)
class Load(Event):
    """Load the last saved state, from a Save since everything was built, into the present model and optimizer.

    All values become those of the Save, except frozen parameters, and there are no gradients. Without ``optimizer``
    only the weights are loaded: the rest begins afresh, as in SaveAndLoad.
    """

    shows: ClassVar[str] = "parameters"

    optimizer: bool = True

    @property
    def ends_gradients(self) -> bool:
        """It does."""
        return True

    def check(self, setup: Setup, before: Standing) -> None:
        """Something was saved."""
        if before.saved is None:
            raise ValueError(f"{self!r} finds nothing: no Save has come since all was built")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """Hyper-parameters are those that were saved, or begin afresh."""
        settings = before.saved if self.optimizer and before.saved else hyperparameters.at_the_start(setup)
        return before.without_gradients()._replace(settings=settings, unscaled=False)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Goes back."""
        drop_gradients(state)
        state.unscaled = state.skip = False
        go_back(state)
        if not self.optimizer:
            begin_optimizer(state)
