"""A part of a program: its first and last event, the file with its initial state, and the events that are observed."""

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.oracle.program import Scenario


@dataclass(frozen=True)
class Part:
    """The events ``begin`` .. ``end`` - 1 (None: to the last), counted from 0.

    - ``file``: if ``begin`` is not 0, the first event is a SaveAndLoad, and loads this file instead of what it saves.
    - ``saves``: the places of the events before which the state is saved without further use, `len(program)` for after
      the last one. The file of the last save is returned.
    - ``looks``: the event from which on parameters, gradients and optimizer state are observed; 0: also at the start.
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
    """Bytes as text that JSON can carry."""
    return base64.b64encode(file.tobytes()).decode()
