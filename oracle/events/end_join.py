"""EndJoin: every rank has run out of micro-batches."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State, drop_gradients


@dataclass(frozen=True, repr=False)
class EndJoin(Event):
    """All ranks have run out of micro-batches; from here on all take part again.

    Parameters become, on every rank, those of the ranks that were the last to run out, and the caller drops all
    gradients.
    """

    shows: ClassVar[str] = "parameters"
    while_joined: ClassVar[bool] = True

    @property
    def ends_gradients(self) -> bool:
        """It does."""
        return True

    def check(self, setup: Setup, before: Standing) -> None:
        """There is a Join that it ends."""
        if before.gone is None:
            raise ValueError(f"{self!r}: a Join is not inside another, and EndJoin ends one")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """Nobody is gone."""
        return before.without_gradients()._replace(gone=None, divide_by="")

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """All ranks are there again, without gradients."""
        drop_gradients(state)
        state.over_all_ranks, state.gone = True, ()
