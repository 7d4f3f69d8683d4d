"""Lanes in a terminal, as a diagram, as a page and as a trace: nothing is lost, nothing is wider than the terminal."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from lockstep.pictures import in_svg, in_text, perfetto
from lockstep.pictures.lanes import Lane, Lanes, quantity, size
from lockstep.pictures.tests.examples import FAST, LANES

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_every_rank_at_its_own_pace(width: int) -> None:
    lines = in_text.drawn(LANES, width)
    assert max(map(len, lines)) <= width
    (first,), (second,) = ([line for line in lines if line.startswith(f"rank {rank}  ")] for rank in (0, 1))
    for letter, part in zip("FB.", (2, 2, 5), strict=True):
        assert abs(first[11:].count(letter) - part * (width - 11) / 10) < 2  # columns are whole
    assert second.index("O") > first.rindex(".")
    assert any("1, 2, ... collectives under way" in line for line in lines), "the key is broken between its parts"
    assert sum("DIFFERENT PARAMETERS MEET" in line for line in lines) == 2
    assert any("4.000     9.000" in line and "waits for collective 1" in line for line in lines)
    assert any("2 KiB  backward: the gradient of b is final" in line for line in lines)


def test_ranks_that_do_the_same_are_told_once() -> None:
    alike = Lanes("t", "", tuple(Lane(rank, FAST) for rank in range(3)), ())
    lines = in_text.drawn(alike, 80)
    assert [line[:9] for line in lines if line.startswith("rank")] == ["ranks 0-2", "ranks 0-2"]


def test_the_model_is_told_below_the_title() -> None:
    modelled = replace(LANES, model="2 ranks; parameters " + ", ".join(f"<{name}>" for name in "abcdefghijklmnopqrst"))
    title, *others = in_text.drawn(modelled, 80)
    told = others[: others.index("")]
    assert (title, " ".join(told)) == (LANES.title, modelled.model)
    assert len(told) > 1
    assert "<p>2 ranks; parameters &lt;a&gt;, &lt;b&gt;" in in_svg.page(modelled)


def test_a_run_that_takes_no_time_is_no_picture() -> None:
    assert in_text.drawn(Lanes("t", "", (), ()), 80) == ["t", "nothing takes any time"]


def test_the_diagram_has_a_bar_for_all_that_takes_time_and_escapes_what_it_shows() -> None:
    root = ElementTree.fromstring(in_svg.svg(LANES))
    kinds = [str(rect.get("class")) for rect in root.iter(f"{SVG}rect") if float(rect.get("height", 0)) == in_svg.ROW]
    assert sorted(kinds) == sorted(
        ["forward", "backward", "wait", "forward", "backward", "optimizer", "clash", "clash"]
    )
    titles = [str(title.text) for title in root.iter(f"{SVG}title")]
    assert any("rank 0: b; rank 1: a; different parameters meet here" in title for title in titles)
    assert "Wrong<DDP>: 2 ranks" in [text.text for text in root.iter(f"{SVG}text")]
    right = max(float(rect.get("x", 0)) + float(rect.get("width", 0)) for rect in root.iter(f"{SVG}rect"))
    assert right <= in_svg.WIDTH


def test_a_page_holds_all_that_it_shows() -> None:
    page = in_svg.page(LANES)
    assert "Wrong&lt;DDP&gt;" in page
    assert "Wrong<DDP>" not in page
    assert not [word for word in ("http://", "https://", "src=", "@import", "url(", "<link") if word in page]
    assert page.count("DIFFERENT PARAMETERS MEET") == 2


def test_a_trace_has_a_process_for_each_rank_and_the_times_in_microseconds() -> None:
    events = json.loads(perfetto.trace(LANES))["traceEvents"]
    spans = [each for each in events if each["ph"] == "X"]
    told = [(each["pid"], each["tid"], each["cat"], each["ts"], each["dur"]) for each in spans]
    assert (0, 1, "wait", 4000.0, 5000.0) in told
    assert (1, 2, "collective", 6000.0, 3000.0) in told
    assert len(spans) == len(LANES.lanes[0].doings) + len(LANES.lanes[1].doings) + 2
    flows = {each["id"]: (each["ts"], each["pid"]) for each in events if each["ph"] == "s"}
    assert flows == {"1 of rank 0": (4000.0, 0), "1 of rank 1": (6000.0, 1)}
    assert [each["args"]["bytes"] for each in events if each["ph"] == "C"] == [512, 2048]
    names = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names == {"rank 0", "rank 1", "computing", "communicating"}


def test_a_transfer_that_is_alike_on_all_ranks_names_its_parameters_once() -> None:
    (transfer,) = LANES.transfers
    assert transfer.carries() == "rank 0: b; rank 1: a"
    assert replace(transfer, contents={0: "a", 1: "a"}).carries() == "a"
    assert replace(transfer, contents={}).carries() == ""


def test_bytes_in_words() -> None:
    told = [size(count) for count in (0, 512, 16640, 25 * 2**20, 130 * 2**30, 2**40)]
    assert told == ["0 B", "512 B", "16.2 KiB", "25 MiB", "130 GiB", "1 TiB"]


def test_counts_are_told_in_their_unit() -> None:
    told = [quantity(count) for count in (0, 950, 12_500, 124_439_808, 7_500_000_000)]
    assert told == ["0", "950", "12.5 K", "124.4 M", "7.5 B"]
