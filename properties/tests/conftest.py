"""Worlds for tests of kernels inside a wrapper."""

from collections.abc import Iterator

import pytest

from properties.kernels import device
from worlds.contract import World
from worlds.gloo import GlooWorld


@pytest.fixture(scope="session")
def of_kernels(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world on whose tensors kernels run: simulated ranks where they are interpreted, or ranks that share a GPU."""
    if device.choose() == "interpreted":
        yield request.getfixturevalue("sim")
        return
    world = GlooWorld(device="cuda")
    yield world
    world.close()
