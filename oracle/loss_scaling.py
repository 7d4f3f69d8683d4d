"""Loss scaling with a scale that follows the overflows (Micikevicius et al., ICLR 2018, section 3.2).

Scales are powers of two, so that scaling and unscaling round nothing. Named as in torch's ``GradScaler``: growth factor
2, backoff factor 1/2, and ``growth_interval``.
"""

import numpy as np

from lockstep.oracle import enclosures, lattice
from lockstep.oracle.intervals import Interval
from lockstep.oracle.state import State


def unscale(state: State) -> None:
    """g <- g / scale. Whether any gradient of any rank is not finite decides for all ranks to skip the next step."""
    assert state.scale is not None  # a well-formed scenario has one
    state.gradients.exact[:] = lattice.divide(state.gradients.exact, whole(state.scale), state.form)
    for parameter, value in state.gradients.enclosed.items():
        form = state.setup.parameters[parameter].dtype
        halved = Interval(value.low / state.scale, value.high / state.scale)
        state.gradients.enclosed[parameter] = enclosures.in_either(halved.round, form, state.kept[parameter])
    state.unscaled = True
    state.skip = bool(state.infinite.any())


def update(state: State) -> None:
    """After a step: halved if it was skipped, doubled after ``growth_interval`` in a row that were not."""
    settings = state.setup.loss_scale
    assert settings is not None
    assert state.scale is not None
    if state.skip:
        state.scale, state.steps_since_overflow = state.scale / 2, 0
    else:
        state.steps_since_overflow += 1
        if state.steps_since_overflow == settings.growth_interval:
            state.scale, state.steps_since_overflow = state.scale * 2, 0
    state.unscaled = state.skip = False


def whole(scale: float) -> int:
    """Inexact outside of the range 1 .. 2**24, in which a scale is an integer that every format but float16 holds."""
    if not 1 <= scale <= 2.0**24:
        raise lattice.Inexact(f"a loss scale of {scale} is not one of 1 .. 2**24")
    return int(scale)


def scaled(totals: np.ndarray, scale: float | None) -> np.ndarray:
    """Integer coefficients of a loss that is multiplied by the scale."""
    return totals if scale is None else totals * whole(scale)
