"""Replace: new tensors take the place of those of parameters."""

from dataclasses import dataclass

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State, forget


@dataclass(frozen=True, repr=False)
class Replace(Event):
    """The caller assigns new tensors in place of those of parameters, under all their names and in its optimizer.

    It comes while there are no gradients. The new tensors have the same values and are trained if the old ones were.
    Their optimizer state and step counts begin afresh. Their masters begin afresh from the new tensors. ``renamed``:
    the module holds the new tensors under names that it did not have before, and no longer has the old names.
    """

    parameters: tuple[int, ...]
    renamed: bool = False

    def check(self, setup: Setup, before: Standing) -> None:
        """It names tensors, and none has a gradient."""
        if before.gradients:
            raise ValueError(f"{self!r} comes while there are gradients: drop them first")
        setup.check_tensors(self, self.parameters)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Forgets their state."""
        forget(state, self.parameters)
