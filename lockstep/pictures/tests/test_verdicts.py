"""The page of a run of the laws: escaped, whole, and, in a real browser, its filters."""

from pathlib import Path

import pytest

from lockstep.pictures.tests.browser import opened
from lockstep.pictures.tests.examples import LANES
from lockstep.pictures.verdicts import page, state

NAME = "my_ddp:MyDDP"
ENDS: tuple[tuple[str, str, str, list[str]], ...] = (
    ("P1", "sim", "broken by D1 on sim", ["D1"]),
    ("P2", "sim", "holds", []),
    ("P2", "gloo", "holds", []),
)
LAWS = [
    {"law": f"{number} a law", "world": world, "verdict": verdict, "runs": 100, "refused": 0, "defects": defects}
    for number, world, verdict, defects in (*ENDS, ("P6", "", "not claimed; tried: holds", []))
]
DEFECT = {
    "id": "D1",
    "law": "P1 a law",
    "world": "sim",
    "verdict": "silently wrong",
    "script": "a.py",
    "report": "<b>rank 1</b>",
    "laws": ["P1 a law", "P5 a law"],
}


def made() -> str:
    target = {"name": NAME, "laws": LAWS, "defects": [DEFECT]}
    return page({"seed": "1"}, [target], {(NAME, "D1"): LANES}, {"a.py": "import torch"})


def test_the_page_has_each_law_and_defect_and_holds_all_that_it_shows() -> None:
    text = made()
    assert text.count("data-state=") == len(LAWS)
    assert "&lt;b&gt;rank 1&lt;/b&gt;" in text
    assert "import torch" in text
    assert "different parameters meet here" in text
    assert not [word for word in ("http://", "https://", "src=", "@import", "url(", "<link") if word in text]


def test_verdicts_are_good_bad_or_open() -> None:
    told = ("holds", "refuses", "holds apart from D1", "silently wrong", "broken by D1", "not claimed", "shows nothing")
    assert [state(each) for each in told] == ["good", "good", "good", "bad", "bad", "open", "open"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_renders_it_filters_it_and_fetches_nothing(scheme: str, tmp_path: Path) -> None:
    with opened(made(), tmp_path, color_scheme=scheme) as shown:
        rows = shown.locator(".matrix tbody tr:visible")
        assert rows.count() == 4
        shown.uncheck("[name=good]")
        assert (rows.count(), shown.inner_text("output")) == (2, "2 of 4")
        shown.fill("[name=words]", "p1")
        assert rows.count() == 1
        shown.fill("[name=words]", "")
        shown.check("[name=good]")
        shown.select_option("[name=world]", "gloo")
        assert rows.count() == 1
        assert shown.locator(".defect svg.diagram rect.clash").first.is_visible()
        assert (shown.asked, shown.wrong) == ([shown.url], [])
