"""Finish: gradients are final."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lockstep.oracle import joining, means
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Finish(Event):
    """The end of a synchronization: it follows each synchronizing Backward, and nothing else.

    After it the gradient of a parameter is, on every rank, the mean over ranks of the gradients that they had
    accumulated, a missing one counting as zero.
    """

    shows: ClassVar[str] = "gradients"
    finishes: ClassVar[bool] = True
    while_joined: ClassVar[bool] = True

    def after(self, setup: Setup, before: Standing) -> Standing:
        """Gradients are averages."""
        return before._replace(unfinished=False, averages=True)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Give every rank the mean."""
        counted = joining.counted(state)
        if state.fresh is not None:  # which some average by itself, and add to the average that is there
            means.mean(state, state.fresh[counted])
        state.gradients.exact[:] = means.mean(state, state.gradients.exact[counted])
        state.fresh, state.eager = np.zeros_like(state.gradients.exact), None
        for tensor in list(state.gradients.enclosed):
            means.mean_of_enclosed(state, tensor)
        state.has[:] = state.has.any(axis=0) | (state.trained & (state.choices.unused == "zero"))
        state.infinite[:] = state.infinite.any(axis=0)
