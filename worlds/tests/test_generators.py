"""Whether a rank has drawn random numbers is seen in the memory of their generators."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from lockstep.worlds.sim.generators import Generator, NumPyGenerator, PythonGenerator, TorchGenerator

MORE_THAN_ALL_WORDS = 700  # after 624 words, at most, a generator makes them anew
KINDS: dict[str, tuple[type[Generator], Callable[[], object], Callable[[int], object]]] = {
    "random": (PythonGenerator, random.random, random.seed),
    "random, normal": (PythonGenerator, lambda: random.gauss(0, 1), random.seed),
    "numpy": (NumPyGenerator, np.random.rand, np.random.seed),
    "numpy, normal": (NumPyGenerator, np.random.randn, np.random.seed),
    "torch": (TorchGenerator, lambda: torch.rand(1), torch.manual_seed),
    "torch, normal": (TorchGenerator, lambda: torch.randn(1), torch.manual_seed),
}


@pytest.fixture
def generator(kind: str) -> Iterator[Generator]:
    found = KINDS[kind][0]()
    state = found.state()
    found.seed()
    yield found
    found.restore(state)


@pytest.mark.parametrize("kind", KINDS)
def test_every_draw_shows(generator: Generator, kind: str) -> None:
    draw, seen = KINDS[kind][1], set()
    for _ in range(MORE_THAN_ALL_WORDS):
        draw()
        generator.state()  # as whoever sees a change asks for it
        seen.add(generator.signature())
    assert len(seen) == MORE_THAN_ALL_WORDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_shows_and_so_does_a_state_that_is_set(generator: Generator, kind: str) -> None:
    _, draw, seed = KINDS[kind]
    signatures, states = [], []
    for number in range(100):
        seed(number)
        if number % 2:
            draw()
        states.append(generator.state())
        signatures.append(generator.signature())
    for state in states:
        generator.restore(state)
        signatures.append(generator.signature())
    assert len(set(signatures[:100])) == len(set(signatures[100:])) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_this_build_is_looked_at_and_not_asked(
    generator: Generator, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> object:
        raise AssertionError("it was asked")

    for of, name in ((random, "getstate"), (np.random, "get_state"), (TorchGenerator, "state")):
        monkeypatch.setattr(of, name, ask)
    with pytest.raises(AssertionError, match="it was asked"):
        generator.state()
    generator.signature()
