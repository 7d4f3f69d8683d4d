"""Step: of the optimizer."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lockstep.oracle import loss_scaling, stepping
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.mixed_precision import MASTER
from lockstep.oracle.optimizers import AdamState
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import ExpectedValue, State, told_value


@dataclass(frozen=True, repr=False)
class Step(Event):
    """A step of the optimizer (`oracle.optimizers`), with the hyper-parameters of the parameter's group.

    A parameter without a gradient keeps its value, its state and its step count. The optimizer is SGD by default: p <-
    p - learning_rate * gradient. Gradients stay. With Nesterov's momentum torch's foreach form adds to them, so a
    program that is compared drops them next.

    With a loss scale, Unscale comes first if it has not come since the last Step. The scale is then halved after a
    skipped step, and doubled after ``growth_interval`` others in a row.

    ``groups``: the numbers of the groups that are stepped, in this order; None: all groups. If any Step names groups,
    the caller has one optimizer for each group that has parameters. It steps those of the named groups, or all if a
    Step names none. All other rules of the optimizer hold for each.

    With masters, a 16-bit parameter has an fp32 copy, made from it at the start. The gradient is cast to fp32, the copy
    is stepped, and the parameter becomes the copy, rounded to nearest even.
    """

    shows: ClassVar[str] = "parameters"
    reads_gradients: ClassVar[bool] = True
    while_joined: ClassVar[bool] = True

    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and len({*self.groups}) < max(1, len(self.groups)):
            raise ValueError(f"a step is of one group or more, each named once, not of {self.groups}")

    def uses_gradients(self, state: State) -> bool:
        """True unless it is skipped."""
        return not state.skip

    def check(self, setup: Setup, before: Standing) -> None:
        """Gradients exist if it looks for overflows, and the named groups have parameters."""
        if setup.loss_scale is not None and not before.gradients:
            raise ValueError("with a loss scale, Step takes gradients, to see whether they overflowed")
        if self.groups is not None:
            some = {number for number, group in enumerate(setup.all_groups) if group.parameters}
            if not {*self.groups} <= some or setup.loss_scale is not None:
                has = f"groups {sorted(some)} have some, and the loss scale is {setup.loss_scale}"
                raise ValueError(f"{self!r} takes groups with parameters, and no loss scale: {has}")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """The next Step unscales, too."""
        return before._replace(unscaled=False)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Unscale if that is still to be done; step, unless a gradient overflowed; update the scale."""
        if state.scale is not None and not state.unscaled:
            loss_scaling.unscale(state)
        if not state.skip:
            stepping.step(state, self.groups)
        if state.scale is not None:
            loss_scaling.update(state)
            told.loss_scales[place] = state.scale
        told.states[place] = _told_states(state)
        idle = (index for index in state.masters if index not in state.optimizer and not state.trained[index])
        told.spared[place] = frozenset(idle)


def _told_states(state: State) -> tuple[dict[str, ExpectedValue], ...]:
    """The optimizer state of each parameter under torch's names, and its master; empty if it was never stepped."""
    all_states: list[dict[str, ExpectedValue]] = []
    for index, parameter in enumerate(state.setup.parameters):
        held, found = state.optimizer.get(index), dict[str, ExpectedValue]()
        dtype = MASTER if index in state.masters else parameter.dtype
        if isinstance(held, AdamState):
            found["step"] = np.asarray(held.step, dtype=np.float32)
            found["exp_avg"] = told_value(held.exp_avg, dtype, parameter.shape)
            found["exp_avg_sq"] = told_value(held.exp_avg_sq, dtype, parameter.shape)
        elif held is not None and held.momentum_buffer is not None:
            found["momentum_buffer"] = told_value(held.momentum_buffer, dtype, parameter.shape)
        if index in state.masters:
            found["master"] = told_value(state.masters[index], MASTER, parameter.shape)
        all_states.append(found)
    return tuple(all_states)
