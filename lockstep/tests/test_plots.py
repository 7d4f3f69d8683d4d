"""The figure and the page of `lockstep cost`, where matplotlib is installed."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from lockstep import command
from lockstep.pictures.tests.browser import BEYOND, PAPER, opened

pytest.importorskip("matplotlib", reason="plots need matplotlib, an extra")


def test_cost_draws_a_figure_and_a_page_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, html = tmp_path / "cost.svg", tmp_path / "cost.html"
    command.main(["cost", "--model", "gpt2", "--node", "8", "--svg", str(svg), "--html", str(html)])
    assert "gpt2" not in capsys.readouterr().err
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    page = html.read_text("utf-8")
    assert "124.4 M parameters on 64 ranks" in page
    assert [f"<td>{how}</td>" in page for how in ("one ring", "hierarchical")] == [True, True]
    assert not [word for word in ("src=", "@import", "<link", "<script") if word in page]
    command.main(["cost", "--model", "gpt2", "--json"])
    assert json.loads(capsys.readouterr().out)["ranks"] == 64


def test_the_page_fits_a_small_screen_and_paper(tmp_path: Path) -> None:
    html = tmp_path / "cost.html"
    command.main(["cost", "--model", "gpt2", "--node", "8", "--html", str(html)])
    with opened(html.read_text("utf-8"), tmp_path, viewport={"width": 800, "height": 900}) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") <= 800
        shown.set_viewport_size(PAPER)
        shown.emulate_media(media="print")
        assert shown.evaluate(BEYOND) == []
