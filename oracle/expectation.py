"""The values that every rank must hold, event by event."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lockstep.oracle.state import ExpectedValue, Inside, Values


@dataclass(frozen=True)
class Expectation:
    """The values on *every* rank that is not gone, one per parameter: an array in its dtype and shape, which
    must come out bit for bit, or an `Inside`, an interval of its shape and dtype that must contain what comes out.
    None: there is no gradient.

    All by the event's place in the program: ``gradients`` and ``parameters`` after each event that shows them
    (`oracle.event.Event.shows`); ``norms`` of each Clip; no gradients and no norm for a Clip after an overflow, and
    no gradients that have overflowed to something else than infinity. After
    each Step also ``states``, the optimizer's, a mapping per parameter with torch's names (none: no state) and "master"
    for one that has a master; ``spared``, the parameters that need no master yet, as they are frozen and have no state;
    and ``loss_scales``. ``buffers`` after each Backward by rank. ``metrics`` after each with one: what the caller
    has added up. ``initial`` parameters after construction.
    """

    initial: Values
    gradients: dict[int, Values] = field(default_factory=dict)
    parameters: dict[int, Values] = field(default_factory=dict)
    norms: dict[int, ExpectedValue] = field(default_factory=dict)
    states: dict[int, tuple[dict[str, ExpectedValue], ...]] = field(default_factory=dict)
    spared: dict[int, frozenset[int]] = field(default_factory=dict)
    loss_scales: dict[int, float] = field(default_factory=dict)
    buffers: dict[int, list[list[npt.NDArray[np.float32]]]] = field(default_factory=dict)
    metrics: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """True if every value is known to the bit, and none is an interval."""
        of_parameters = [
            value for kind in (self.gradients, self.parameters) for each in kind.values() for value in each
        ]
        of_states = [value for each in self.states.values() for state in each for value in state.values()]
        return not any(isinstance(value, Inside) for value in (*of_parameters, *self.norms.values(), *of_states))
