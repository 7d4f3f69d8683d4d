"""Freeze: parameters are no longer trained, or trained again."""

from collections.abc import Set
from dataclasses import dataclass

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Freeze(Event):
    """Parameters are trained no longer, or, with ``frozen`` false, again: ``requires_grad`` is set.

    It comes while there are no gradients; or while all gradients are synchronized and ZeroGrad, the next event, drops
    them, those of frozen parameters too. A frozen parameter takes no part.
    """

    parameters: tuple[int, ...]
    frozen: bool = True

    def of_frozen(self, before: Set[int]) -> set[int]:
        """The tensors that are frozen after it, given those that were frozen before."""
        return {*before} | {*self.parameters} if self.frozen else {*before} - {*self.parameters}

    def check(self, setup: Setup, before: Standing) -> None:
        """It names tensors."""
        setup.check_tensors(self, self.parameters)

    def after(self, setup: Setup, before: Standing) -> Standing:
        """Others are trained, and gradients that are there are to be dropped."""
        names = {*setup.names(*self.parameters)}
        trained = before.trained - names if self.frozen else before.trained | names
        return before._replace(trained=trained, leftover=before.gradients)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Notes which are trained."""
        state.trained[state.setup.names(*self.parameters)] = not self.frozen
