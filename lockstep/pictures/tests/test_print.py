"""Pages on paper: nothing is cut off, what is folded is open, filters are gone, and colours stay."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.pictures import in_svg, pages, verdicts
from lockstep.pictures.tests.browser import BEYOND, PAPER, opened
from lockstep.pictures.tests.examples import LANES

LONG = "a_package_with_a_long_name/" * 6
NAME = f"{LONG}my_ddp.py:MyDDP"


def of_verdicts() -> str:
    """A page with a defect, its picture and its script, all with long names and lines."""
    told = {"law": "P1 gradients equal the mean over ranks", "world": "sim", "verdict": "broken by D1 on sim"}
    law = {**told, "runs": 100, "refused": 0, "defects": ["D1"]}
    script = f"{LONG}it.py"
    defect = {"id": "D1", **told, "script": script, "report": f"{'wide ' * 40}\n{'w' * 200}", "laws": [told["law"]] * 9}
    targets = [{"name": name, "laws": [law] * 30, "defects": [defect]} for name in (NAME, "other:DDP")]
    return verdicts.page({"seed": "1"}, targets, {(NAME, "D1"): LANES}, {script: f"x = '{'x' * 300}'  # in the script"})


def of_a_comparison(clocked: bool = True) -> str:
    """A page of several implementations, of which one has not come to its end."""
    times = {"compute": 0.5, "overlap": 0.25, "step": 123.4}
    ended = {"name": NAME, "on_sim": times, "by_the_clock": times if clocked else None, "calls": 12, "bytes": 1 << 20}
    rows: list[dict[str, Any]] = [ended, {**ended, "on_sim": None, "why": "hangs " * 30}]
    return pages.filled("comparison.html.j2", rows=rows, told="Times are modelled.", clocked=clocked)


PAGES = {"verdicts": of_verdicts, "run": lambda: in_svg.page(LANES), "comparison": of_a_comparison}


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_a_small_screen(page: str, tmp_path: Path) -> None:
    """What is wider, such as a table, scrolls by itself."""
    with opened(PAGES[page](), tmp_path, viewport={"width": 800, "height": 900}) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") <= 800


def test_what_was_not_measured_has_no_columns() -> None:
    assert "gloo" in of_a_comparison()
    assert "gloo" not in of_a_comparison(clocked=False)


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_cut_off_at_the_right_of_the_paper(page: str, tmp_path: Path) -> None:
    with opened(PAGES[page](), tmp_path, viewport=PAPER) as shown:
        shown.emulate_media(media="print")
        assert shown.evaluate(BEYOND) == []
        assert shown.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]


def test_what_is_wider_than_the_paper_is_seen_by_that_test(tmp_path: Path) -> None:
    for wide in ("<pre style='width: 700px'>x</pre>", f"<pre style='overflow: hidden'>{'x' * 999}</pre>"):
        with opened(wide, tmp_path, viewport=PAPER) as shown:
            assert len(shown.evaluate(BEYOND)) == 1


def test_what_is_folded_is_open_on_paper_and_filters_are_gone(tmp_path: Path) -> None:
    with opened(of_verdicts(), tmp_path, viewport=PAPER) as shown:
        script, controls = shown.get_by_text("# in the script").first, shown.locator(".filters, .copy, .noprint")
        assert not script.is_visible()
        assert shown.locator(".filters").is_visible()
        shown.emulate_media(media="print")
        assert script.is_visible()
        assert script.bounding_box()["height"] > 10
        assert not any(each.is_visible() for each in controls.all())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_bars_stay_on_white_paper(scheme: str, tmp_path: Path) -> None:
    looks = """kind => {
        const style = getComputedStyle(document.querySelector(`svg.diagram[role=img] rect.${kind}`));
        return [style.fill, style.stroke, style.printColorAdjust];
    }"""
    with opened(in_svg.page(LANES), tmp_path, viewport=PAPER, color_scheme=scheme) as shown:
        on_screen = {kind: shown.evaluate(looks, kind) for kind in ("forward", "backward", "wait", "clash")}
        shown.emulate_media(media="print")
        on_paper = {kind: shown.evaluate(looks, kind) for kind in on_screen}
        assert {kind: told[:2] for kind, told in on_paper.items()} == {k: told[:2] for k, told in on_screen.items()}
        assert {told[2] for told in on_paper.values()} == {"exact"}
        assert on_paper["clash"][1] != "none", "without colour the frame tells it apart"
        paper = shown.evaluate(
            "[document.body, document.querySelector('h1')].map(e => getComputedStyle(e))"
            ".map(style => [style.backgroundColor, style.color])"
        )
        assert (paper[0][0], paper[1][1]) == ("rgb(255, 255, 255)", "rgb(0, 0, 0)")
