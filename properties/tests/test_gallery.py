"""The pages of the laws show every law broken, and what they show is what the gallery's command writes."""

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.gallery import entry
from lockstep.properties.pages import laws
from lockstep.worlds.contract import World

SHOWN = laws.counterexamples()
QUICK = (
    "test_one_step_on_n_ranks_equals_one_step_on_one_rank_with_the_whole_batch",
    "test_no_sync_accumulates_and_then_counts_once",
)


def test_every_law_has_a_counterexample() -> None:
    assert set(SHOWN) == {laws.heading(name) for name in every_law()}


@pytest.mark.parametrize("law", QUICK)
def test_the_command_writes_the_same_again(sim: World, law: str) -> None:
    """The same fault, the same smallest program, the same words."""
    assert entry(every_law()[law], sim) == SHOWN[laws.heading(law)].strip()
