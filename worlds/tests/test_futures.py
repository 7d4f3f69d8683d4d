"""Whoever asks a future of a collective gets the same answer on sim as on gloo."""

import functools

import pytest

from lockstep.worlds.contract import World
from lockstep.worlds.tests.futures import FUTURES
from lockstep.worlds.tests.outcomes import plain, results, run_of

run = functools.partial(run_of, "futures")


@pytest.mark.parametrize("name", FUTURES)
def test_futures_may_be_asked_anywhere(sim: World, gloo: World, name: str) -> None:
    for size in (1, 2, 3):
        here, there = (results(run(each, "asking_futures", size, name)) for each in (sim, gloo))
        assert plain(here) == plain(there)


def test_waiting_for_one_future_brings_no_other_collectives_result(sim: World) -> None:
    """So that a future that nobody waits for shows."""
    assert [each["values"] for each in results(run(sim, "waiting_for_one_future", 2))] == [[1.0, 2.0]] * 2
