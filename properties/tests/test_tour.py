"""docs/learn.md says of each implementation what one rank calls in a step, and how much it sends; and draws a step."""

import re
from collections import Counter
from pathlib import Path

import pytest

from lockstep.home import HOME, IS_CLONE
from lockstep.oracle.events import Backward, Event, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.judging.traffic import passed
from lockstep.properties.pages import tour
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

RANKS, PARAMETERS, ELEMENTS, STEPS = 4, 8, 16, 2
SMALL_CAP = 2 * ELEMENTS * 4  # bytes: two parameters in float32
EACH_ALONE = tuple((index,) for index in range(PARAMETERS))
# The rows of the table by their first cells: the implementation, its bucket cap in bytes, and its units.
ROWS: dict[str, tuple[str, int | None, tuple[tuple[int, ...], ...]]] = {
    "naive": ("naive:NaiveDataParallel", None, ()),
    "accumulation": ("naive:NaiveAccumulation", None, ()),
    "hook": ("hook:HookDataParallel", None, ()),
    "async hook": ("async_hook:AsyncHookDataParallel", None, ()),
    "static buckets": ("static_buckets:StaticBuckets", None, ()),
    "static buckets, cap of two parameters": ("static_buckets:StaticBuckets", SMALL_CAP, ()),
    "ZeRO-1": ("zero1:Zero1", SMALL_CAP, ()),
    "ZeRO-2": ("zero2:Zero2", SMALL_CAP, ()),
    "ZeRO-3": ("zero3:Zero3", None, EACH_ALONE),
    "ZeRO-3, four micro-batches": ("zero3:Zero3", None, EACH_ALONE),
}


def rows() -> dict[str, tuple[int, str, float]]:
    """The table of the page: of each implementation, its micro-batches, collectives, and what it moves."""
    page = (Path(HOME) / "docs" / "learn.md").read_text()
    found = re.findall(r"^\| \[?([\w ,-]+?)(?:\]\(.*?\))? \| (\d) \| (.*?) \| ([\d.]+) \|$", page, re.MULTILINE)
    return {name: (int(batches), calls, float(moved)) for name, batches, calls, moved in found}


@pytest.mark.skipif(not IS_CLONE, reason="the page is the clone's")
@pytest.mark.parametrize("row", ROWS)
def test_the_tour_tells_what_is_sent(sim: World, row: str) -> None:
    assert set(rows()) == set(ROWS)
    (name, cap, units), (micro_batches, calls, moved) = ROWS[row], rows()[row]
    orders = (tuple(reversed(range(PARAMETERS))),) * RANKS
    step: list[Event] = [Backward(orders, synchronize=number == micro_batches - 1) for number in range(micro_batches)]
    program = (*step, Finish(), Step(), ZeroGrad()) * STEPS
    scenario = Scenario(RANKS, (Parameter((ELEMENTS,)),) * PARAMETERS, program, bucket_cap=cap, units=units)
    sent = trial_of(f"lockstep.impls.{name}", sim).run(scenario).since_construction[0]
    counted = sorted(Counter(call.operation.replace("_", "-") for call in sent).items())
    assert ", ".join(f"{count // STEPS} {operation}" for operation, count in counted) == calls
    assert float(passed(sent, RANKS)) / (STEPS * PARAMETERS * ELEMENTS) == moved


@pytest.mark.skipif(not IS_CLONE, reason="the page is the clone's")
@pytest.mark.parametrize("name", tour.SHOWN)
def test_the_pictures_of_the_tour_are_as_they_would_be_drawn(sim: World, name: str) -> None:
    assert (tour.FOLDER / f"{name}.svg").read_text() == tour.picture(name, sim), (
        "python -m lockstep.properties.pages.tour"
    )
    assert f"(tour/{name}.svg)" in (Path(HOME) / "docs" / "learn.md").read_text()
