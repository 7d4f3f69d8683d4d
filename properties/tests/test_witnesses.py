"""No law passes vacuously on what ships: what it needs to have taken place does take place in its own example."""

import pytest

from properties.catalogue import every_law
from properties.hold import unwitnessed
from properties.implementations import CORRECT, look_up
from properties.law import concerns
from properties.trial import Trial
from worlds.contract import World

LAWS = every_law().values()


@pytest.mark.parametrize("name", CORRECT)
def test_every_law_shows_something_on_every_correct_implementation(sim: World, name: str) -> None:
    (implementation,) = look_up([name], sim)
    for law in LAWS:
        if concerns(law, implementation.claims):
            assert unwitnessed(law, Trial(implementation, sim)) == []
