"""A part of a program: where it begins and ends, the file in which its state comes from ranks of another world, and
from where on it is looked at.
"""

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.oracle.program import Scenario


@dataclass(frozen=True)
class Part:
    """The events ``begin`` .. ``end`` - 1 (None: to the last), counted from 0.

    A part that does not begin at 0 begins at a SaveAndLoad, and loads what ``file`` holds instead of what it saves.
    ``saves``: the events before which the state is saved and nothing is done with it, `len(program)` for after the
    last; the file of the last of them comes back. ``looks``: the event from which on parameters, gradients and the
    optimizer's state are looked at; 0: those of the start too.
    """

    begin: int = 0
    end: int | None = None
    saves: tuple[int, ...] = ()
    file: str = ""
    looks: int = 0

    def stop(self, scenario: Scenario) -> int:
        """The place after its last event."""
        return len(scenario.program) if self.end is None else self.end


WHOLE = Part()


def as_text(file: npt.NDArray[np.uint8]) -> str:
    """Bytes as JSON can carry them."""
    return base64.b64encode(file.tobytes()).decode()
