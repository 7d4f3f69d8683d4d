"""Every event of the oracle's has a module that says how a rank carries it out, and no module is left over."""

from pathlib import Path

import pytest

from lockstep.oracle.events import Event
from lockstep.properties.event_modules import of_event
from lockstep.properties.ranks import events
from lockstep.properties.ranks.events import ON_RANKS
from lockstep.properties.ranks.events.on_ranks import OnRanks


def test_each_module_is_that_of_an_event() -> None:
    there = {path.stem for path in Path(events.__path__[0]).glob("*.py")} - {"__init__", "on_ranks"}
    assert there == {kind.module() for kind in ON_RANKS}


def test_an_event_without_a_module_is_told_in_one_line() -> None:
    with pytest.raises(ImportError, match=r"^StepScheduler has no module \S+\.ranks\.events\.step_scheduler$"):
        of_event(events.__name__, type("StepScheduler", (Event,), {}), "ON_RANKS", OnRanks)


def test_a_module_that_says_nothing_is_told_in_one_line() -> None:
    with pytest.raises(ImportError, match=r"on_ranks has no ON_RANKS of class OnRanks for OnRanks$"):
        of_event(events.__name__, type("OnRanks", (Event,), {}), "ON_RANKS", OnRanks)


def test_what_does_not_say_how_to_run_an_event_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?run'?"):
        type("Idle", (OnRanks,), {})()
