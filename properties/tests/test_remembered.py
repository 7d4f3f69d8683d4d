"""What failed before is tried again first, and is the smallest there is whatever became of the run that found it."""

from dataclasses import replace

import pytest
from hypothesis.database import InMemoryExampleDatabase

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.searching.remembered import Remembered
from lockstep.properties.searching.search import Search, search
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import World

MEAN = every_law()["test_gradients_equal_the_mean_over_ranks"]


def trial(sim: World) -> Trial:
    return trial_of("lockstep.impls.hook_order_buckets:HookOrderBuckets", sim)


def smallest(found: Search) -> list[str]:
    return sorted(f"{failure.verdict}: {failure.drawn}" for failure in found.failures)


def test_what_failed_is_tried_again_first(sim: World) -> None:
    database = InMemoryExampleDatabase()
    found = search(MEAN, trial(sim), 100, database=database)
    again = search(MEAN, trial(sim), 100, database=database)
    assert smallest(again) == smallest(found) != []
    assert again.examples < found.examples


def test_what_a_run_has_left_that_was_stopped_while_it_shrank_is_not_told_as_the_smallest(sim: World) -> None:
    database, failed = InMemoryExampleDatabase(), 0

    def stopped(under_test: Trial, drawn: object) -> None:
        nonlocal failed
        try:
            MEAN.check(under_test, drawn)
        except LawBroken:
            failed += 1
            if failed == 3:
                raise KeyboardInterrupt from None
            raise

    with pytest.raises(KeyboardInterrupt):
        search(replace(MEAN, check=stopped), trial(sim), 100, database=database)
    assert any(database.data.values())
    least = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (1, 0))), Finish()))
    assert f"silently wrong: {least}" in smallest(search(MEAN, trial(sim), 100, database=database))


def test_until_a_search_is_through_what_it_has_found_is_still_to_be_shrunk_and_nothing_is_lost() -> None:
    kept = InMemoryExampleDatabase()
    kept.save(b"mine key", b"of before")
    mine = Remembered(kept, "mine")
    mine.save(b"key", b"large")
    mine.save(b"key", b"small")
    for gone in (b"large", b"of before"):
        mine.delete(b"key", gone)
    assert set(mine.fetch(b"key")) == {b"small"}
    beside = Remembered(kept, "mine")
    assert set(beside.fetch(b"key")) == {b"of before"}
    assert set(beside.fetch(b"key.secondary")) == {b"large", b"small"}
    mine.keep()
    assert set(Remembered(kept, "mine").fetch(b"key")) == {b"small"}
    assert set(Remembered(kept, "another").fetch(b"key")) == set()
