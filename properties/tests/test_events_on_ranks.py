"""Every event of the oracle's has a module that says how a rank carries it out, and no module is left over."""

from pathlib import Path

import pytest

from lockstep.oracle.events import Event
from lockstep.properties.ranks import events
from lockstep.properties.ranks.events import ON_RANKS, find
from lockstep.properties.ranks.events.on_ranks import OnRanks


def test_each_module_is_that_of_an_event() -> None:
    there = {path.stem for path in Path(events.__path__[0]).glob("*.py")} - {"__init__", "on_ranks"}
    assert there == {kind.module() for kind in ON_RANKS}


def test_an_event_without_a_module_is_told_in_one_line() -> None:
    with pytest.raises(ImportError, match=r"^no rank can carry out StepScheduler: .*/step_scheduler\.py$"):
        find(type("StepScheduler", (Event,), {}))


def test_a_module_that_says_nothing_is_told_in_one_line() -> None:
    with pytest.raises(ImportError, match=r"^no rank can carry out OnRanks: .*/on_ranks\.py has no ON_RANKS,"):
        find(type("OnRanks", (Event,), {}))


def test_what_does_not_say_how_to_run_an_event_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?run'?"):
        type("Idle", (OnRanks,), {})()
