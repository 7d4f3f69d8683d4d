"""The values that every rank must hold, event by event."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lockstep.oracle.state import ExpectedValue, Inside, Values


@dataclass(frozen=True)
class Expectation:
    """The values on *every* rank that is not gone, one per parameter.

    A value is an array, in its dtype and shape, that must come out bit for bit; or an `Inside`, an interval of its
    shape and dtype that must contain the result; or None: there is no gradient. Values are by the event's place in the
    program:

        initial        parameters after construction
        gradients      after each event that shows them (`oracle.event.Event.shows`)
        parameters     after each event that shows them
        norms          of each Clip
        states         after each Step, by parameter: the optimizer's state under torch's names, and "master" if there
                       is one; empty: no state
        spared         after each Step: the parameters that need no master yet, because they are frozen and have no
                       state
        loss_scales    after each Step
        buffers        after each Backward, by rank
        metrics        after each Backward with one: the caller's sum over ranks

    A Clip after an overflow has no gradients and no norm. Gradients that have overflowed to anything but infinity are
    left out.
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
