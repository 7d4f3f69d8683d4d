"""The hidden generators of `random` and of NumPy, which a process has one of: seen cheaply, kept and set.

Asking either for its state takes longer than most ranks run between two collectives. So a generator has a *signature*,
the bytes that it works on, which changes whenever a number is drawn or a seed set, and takes under a microsecond.
"""

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np

_Twister = ctypes.c_char * (4 * 624 + 4)  # the Mersenne Twister's 624 words and its place in them


class PythonGenerator:
    """`random`'s."""

    def __init__(self) -> None:
        self._hidden: Any = random._inst
        # CPython's RandomObject: the object's head, the place, the words. A build that has it otherwise is asked.
        address = id(self._hidden) + object.__basicsize__
        words = random.getstate()[1]
        memory = _Twister.from_address(address)
        place_first = memory.raw == np.array([words[-1], *words[:-1]], np.uint32).tobytes()
        self._raw: Callable[[], object] = (lambda: memory.raw) if place_first else self.state

    def seed(self) -> None:
        """The state in which every example begins."""
        random.seed(0)

    def signature(self) -> object:
        """Differs from that of any other state."""
        return self._raw(), self._hidden.gauss_next

    def state(self) -> object:
        """What `restore` takes."""
        return random.getstate()

    def restore(self, state: Any) -> None:
        """Goes on from a state."""
        random.setstate(state)


class NumPyGenerator:
    """NumPy's, behind `np.random.rand` and its like. Its second normal number of a pair is kept outside the bytes."""

    def __init__(self) -> None:
        self._keeps_normals = False
        self._memory = _Twister.from_address(np.random.mtrand._rand._bit_generator.ctypes.state_address)

    def seed(self) -> None:
        """The state in which every example begins."""
        np.random.seed(0)
        self._keeps_normals = False

    def signature(self) -> object:
        """Differs from that of any other state."""
        raw = self._memory.raw
        if not self._keeps_normals:
            return raw
        state: Any = np.random.get_state(legacy=False)
        return raw, state["has_gauss"], state["gauss"]

    def state(self) -> object:
        """What `restore` takes."""
        state: Any = np.random.get_state(legacy=False)
        self._keeps_normals = self._keeps_normals or bool(state["has_gauss"])
        return state

    def restore(self, state: Any) -> None:
        """Goes on from a state."""
        np.random.set_state(state)


Generator = PythonGenerator | NumPyGenerator
