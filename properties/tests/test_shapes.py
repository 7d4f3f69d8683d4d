"""docs/shapes.md says what is found of each shape of published code."""

import pytest

from lockstep.home import IS_CLONE
from lockstep.properties.tests.table_of_shapes import HEAD, PAGE, ROWS, Row, line
from lockstep.worlds.contract import World


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names[0])
def test_the_page_says_what_is_found_of_a_shape(sim: World, row: Row) -> None:
    """A right class holds, and the wrong ones do not."""
    told = line(sim, row)
    right, *wrong = told.strip("| \n").split(" | ")[2:]
    assert right == "holds"
    assert not {"holds", "shows nothing"} & {*wrong}
    if IS_CLONE:
        assert told in PAGE.read_text()


@pytest.mark.skipif(not IS_CLONE, reason="the page is the clone's")
def test_the_page_has_nothing_else() -> None:
    text = PAGE.read_text()
    assert text.startswith(HEAD)
    assert len(text.removeprefix(HEAD).splitlines()) == len(ROWS)
