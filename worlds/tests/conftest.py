"""What tests of both worlds alike are given."""

import pytest

from worlds.contract import World


@pytest.fixture(params=["sim", "gloo"])
def world(request: pytest.FixtureRequest) -> World:
    """Each of the two in turn."""
    found: World = request.getfixturevalue(request.param)
    return found
