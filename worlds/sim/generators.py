"""The hidden generators of `random`, NumPy and torch, one of each per process: compared cheaply, saved and restored.

Asking any of them for its state takes longer than most ranks run between two collectives. So a generator has a
*signature*: its place among the words that it draws from, and sixteen of the words, which its memory shows in well
under a microsecond. A draw moves the place. All words are made anew at once, from themselves or from a seed. Reading
all of them takes several times as long, because ranks keep each other's words out of the processor's caches.
"""

import ctypes
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

# All three are Mersenne Twisters: so many bytes of words, of which so many are looked at, and a place in them.
_WORDS, _SOME = 4 * 624, 4 * 16
_PLACE = 4


def _memory(address: int, size: int) -> Any:
    """A view of this memory: its ``raw`` is the present content."""
    return (ctypes.c_char * size).from_address(address)


class PythonGenerator:
    """`random`'s."""

    def __init__(self) -> None:
        hidden: Any = random._inst
        # CPython's RandomObject: the object's head, the place, the words. A build that has it otherwise is asked.
        address = id(hidden) + object.__basicsize__
        words = random.getstate()[1]
        whole, some = _memory(address, _PLACE + _WORDS), _memory(address, _PLACE + _SOME)
        place_first = whole.raw == np.array([words[-1], *words[:-1]], np.uint32).tobytes()
        # Differs from that of any other state.
        self.signature: Callable[[], object] = (lambda: (some.raw, hidden.gauss_next)) if place_first else self.state

    def seed(self) -> None:
        """The state in which every example begins."""
        random.seed(0)

    def state(self) -> object:
        """The state that `restore` takes."""
        return random.getstate()

    def restore(self, state: Any) -> None:
        """Goes on from a state."""
        random.setstate(state)


class NumPyGenerator:
    """NumPy's, behind `np.random.rand` and its like. Its second normal number of a pair is kept outside the bytes.

    `np.random.set_bit_generator` puts another in its place; such a one is asked.
    """

    def __init__(self) -> None:
        self._keeps_normals = False
        self._usual = np.random.mtrand.get_bit_generator()
        # The last words, the place.
        self._memory = _memory(self._usual.ctypes.state_address + _WORDS - _SOME, _SOME + _PLACE)

    def seed(self) -> None:
        """The state in which every example begins."""
        np.random.seed(0)
        self._keeps_normals = False

    def signature(self) -> object:
        """Differs from that of any other state."""
        generator = np.random.mtrand._rand._bit_generator
        if generator is not self._usual:
            return generator, repr(np.random.get_state(legacy=False))
        raw = self._memory.raw
        if not self._keeps_normals:
            return raw
        state: Any = np.random.get_state(legacy=False)
        return raw, state["has_gauss"], state["gauss"]

    def state(self) -> object:
        """The state that `restore` takes."""
        state: Any = np.random.get_state(legacy=False)
        self._keeps_normals = self._keeps_normals or bool(state["has_gauss"])
        return np.random.mtrand.get_bit_generator(), state

    def restore(self, state: Any) -> None:
        """Goes on from a state."""
        generator, its_state = state
        if generator is not np.random.mtrand.get_bit_generator():
            np.random.mtrand.set_bit_generator(generator)
        np.random.set_state(its_state)


class TorchGenerator:
    """torch's for CPU tensors."""

    # ATen's mt19937_data_pod begins with the seed and three numbers that lead to the words; CPUGeneratorImpl keeps it
    # and behind it the second normal number of a pair, one of float and one of double.
    _HEAD, _NORMALS = 20, 28
    _SEED = 0x5EED0F10C57E9

    def __init__(self) -> None:
        self._hidden: Any = torch.default_generator
        begun = self.state()
        self._hidden.manual_seed(self._SEED)
        start = ctypes.string_at(self._hidden._cdata, _WORDS // 2).find(self._SEED.to_bytes(8, "little"))
        head, first = self._hidden._cdata + start, self._hidden._cdata + start + self._HEAD
        some, normals = _memory(head, self._HEAD + _SOME), _memory(first + _WORDS, self._NORMALS)
        # Differs from that of any other state.
        self.signature: Callable[[], object] = lambda: (some.raw, normals.raw)
        if start < 0 or not self._has_words_and_normals(_memory(first, _WORDS)):  # a build that has it otherwise
            self.signature = lambda: self.state().numpy().tobytes()
        self.restore(begun)

    def _has_words_and_normals(self, memory: Any) -> bool:
        words = self.state().numpy()[24 : 24 + 2 * _WORDS].view(np.uint64).astype(np.uint32).tobytes()
        if memory.raw != words:
            return False
        seen = {self.signature()}
        for _ in range(2):  # the second takes what the first has kept
            torch.randn(1)
            seen.add(self.signature())
        return len(seen) == 3

    def seed(self) -> None:
        """The state in which every example begins."""
        self._hidden.manual_seed(0)

    def state(self) -> torch.Tensor:
        """The state that `restore` takes."""
        state: torch.Tensor = self._hidden.get_state()
        return state

    def restore(self, state: Any) -> None:
        """Goes on from a state."""
        self._hidden.set_state(state)


Generator: TypeAlias = PythonGenerator | NumPyGenerator | TorchGenerator
