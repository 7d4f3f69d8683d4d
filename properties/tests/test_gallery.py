"""The gallery shows every law broken, and what it shows is what its command writes."""

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.gallery import PAGE, entry, heading
from lockstep.worlds.contract import World

SHOWN = PAGE.read_text()
QUICK = (
    "test_one_step_on_n_ranks_equals_one_step_on_one_rank_with_the_whole_batch",
    "test_no_sync_accumulates_and_then_counts_once",
)


def test_every_law_has_its_place_in_the_gallery_and_no_other_is_there() -> None:
    assert [line for line in SHOWN.splitlines() if line.startswith("## ")] == [
        heading(law) for law in every_law().values()
    ]


@pytest.mark.parametrize("law", QUICK)
def test_the_command_writes_the_same_again(sim: World, law: str) -> None:
    """The same fault, the same smallest program, the same words."""
    assert f"\n{entry(every_law()[law], sim).strip()}\n" in SHOWN
