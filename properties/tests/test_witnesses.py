"""No law passes vacuously on what ships: what it needs to have taken place does take place in its own example."""

import pytest

from properties import (
    test_accumulation,
    test_asynchrony,
    test_clipping,
    test_collectives,
    test_invariance,
    test_mean,
    test_precision,
    test_replicas,
    test_steps,
)
from properties.hold import unwitnessed
from properties.implementations import CORRECT, look_up
from properties.law import concerns, law_of
from properties.trial import Trial
from worlds.contract import World

LAWS = [
    law_of(test)
    for module in (
        *(test_accumulation, test_asynchrony, test_clipping, test_collectives, test_invariance),
        *(test_mean, test_precision, test_replicas, test_steps),
    )
    for test in vars(module).values()
    if hasattr(test, "law")
]


@pytest.mark.parametrize("name", CORRECT)
def test_every_law_shows_something_on_every_correct_implementation(sim: World, name: str) -> None:
    (implementation,) = look_up([name], sim)
    for law in LAWS:
        if concerns(law, implementation.claims):
            assert unwitnessed(law, Trial(implementation, sim)) == []


def test_some_laws_have_witnesses() -> None:
    assert sum(bool(law.witnesses) for law in LAWS) >= 12
