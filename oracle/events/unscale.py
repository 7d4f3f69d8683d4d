"""Unscale: gradients are divided by the loss scale."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle import loss_scaling
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Unscale(Event):
    """g <- g / scale. If a gradient is then not finite on some rank, all ranks skip the next Step."""

    shows: ClassVar[str] = "gradients"
    reads_gradients: ClassVar[bool] = True

    def check(self, setup: Setup, before: Standing) -> None:
        """There is a loss scale, there are gradients, and it comes once before a Step."""
        if setup.loss_scale is None or before.unscaled or not before.gradients:
            has = f"loss scale {setup.loss_scale}, {'' if before.gradients else 'no '}gradients"
            raise ValueError(f"Unscale takes a loss scale and gradients, and comes once before a Step: here is {has}")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """The next Step need not unscale."""
        return before._replace(unscaled=True)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Divides."""
        loss_scaling.unscale(state)
