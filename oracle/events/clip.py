"""Clip: by the global norm."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lockstep.oracle import clipping, enclosures
from lockstep.oracle.bounds import Enclosure
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import ExpectedValue, Inside, State

NORMS = (1.0, 2.0, 3.0, float("inf"))


@dataclass(frozen=True, repr=False)
class Clip(Event):
    """g <- g * min(1, max_norm / (norm + 1e-6)), norm the p-norm of all gradients together; p is 1, 2, 3 or inf.

    If ``max_norm`` is inf, no gradient is changed. Each parameter's norm is taken in its dtype and the norm of the
    norms in the widest one, or all norms in a wider one. Each rank may first take the norm of its own part.

    If Unscale has found a gradient that is not finite, norm and gradients are left open (0 * inf is NaN). The Step is
    skipped as usual. Gradients are dropped or set to zero before any other event reads them or adds to them.
    """

    shows: ClassVar[str] = "gradients"
    reads_gradients: ClassVar[bool] = True
    while_joined: ClassVar[bool] = True

    max_norm: float
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        if not self.max_norm >= 2.0**-126:
            raise ValueError(f"a largest norm is at least 2**-126, not {self.max_norm}")
        if self.norm_type not in NORMS:
            raise ValueError(f"a norm's type is one of {', '.join(map(str, NORMS))}, not {self.norm_type}")

    def check(self, setup: Setup, before: Standing) -> None:
        """There is a largest element, if it is clipped by that."""
        if self.norm_type == float("inf") and any(each.count == 0 for each in setup.parameters):
            raise ValueError("a parameter without elements has no largest one: clip it by another norm than inf")

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Clip, and tell the norm. After an overflow neither is known.

        torch makes NaN of infinite gradients and zero of the others; other implementations leave all gradients alone.
        """
        if not state.infinite.any():
            told.norms[place] = self._clip(state)
        elif not state.skip:
            raise Inexact("gradients that have overflowed are clipped before Unscale has found them")
        else:
            state.spoiled = True

    def _clip(self, state: State) -> ExpectedValue:
        tensors = [tensor for tensor in state.setup.tensors if state.has[0, tensor]]
        values = [state.gradients.on_rank_zero(tensor) for tensor in tensors]
        forms = [state.forms[tensor] for tensor in tensors]
        kept, ranks = [state.kept[tensor] for tensor in tensors], state.setup.world_size
        try:
            norm, form, clipped = clipping.clip(values, forms, self.max_norm, self.norm_type, ranks, kept)
        except ValueError as error:  # bounds that may reach infinity
            raise Inexact(f"clipping: {error}") from error
        for tensor, value in zip(tensors, clipped, strict=True):
            if isinstance(value, Interval):
                state.gradients.put(tensor, enclosures.stacked([value] * ranks))
            else:
                state.gradients.put(tensor, np.tile(value, (ranks, 1)))
        return _told_norm(norm, form)


def _told_norm(norm: Enclosure, form: str) -> ExpectedValue:
    if norm.low == norm.high:
        return np.asarray(float(norm.low)).astype(FORMATS[form].numpy)
    inside = Interval.enclosing([norm.low], [norm.high])
    return Inside(inside.low[0], inside.high[0], form)
