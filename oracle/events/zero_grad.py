"""ZeroGrad: gradients are dropped, or set to zero."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State, drop_gradients


@dataclass(frozen=True, repr=False)
class ZeroGrad(Event):
    """Gradients become None, or, unless ``set_to_none``, zero if they exist.

    Gradients accumulated inside ``no_sync`` until then are in no mean. Their zeros, which some ranks may have and
    others not, are synchronized before anything reads gradients.
    """

    while_local: ClassVar[bool] = True
    while_joined: ClassVar[bool] = True

    set_to_none: bool = True

    @property
    def ends_gradients(self) -> bool:
        """It does."""
        return True

    def check(self, setup: Setup, before: Standing) -> None:
        """The next broadcast of buffers is certain."""
        if before.local and setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open whether a window begins, and buffers are broadcast: have none")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """There may be zeros, unless they became None."""
        there = before.gradients and not self.set_to_none
        local = before.local and not self.set_to_none
        return before.without_gradients()._replace(
            gradients=there, local=local, leftover=False, window=before.window + 1
        )

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Drops them."""
        drop_gradients(state, self.set_to_none)
