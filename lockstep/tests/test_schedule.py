"""`lockstep schedule` prints what the oracle knows, and draws each message once."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from lockstep import command
from lockstep.oracle.schedules import SCHEDULES, schedule, show_schedule
from lockstep.properties.reports.paragraphs import LEAST, NARROW

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_printed_from_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["schedule", name, "--ranks", "6", "--elements", "4"])
    assert capsys.readouterr().out == show_schedule(name, 4, "float32", 6) + "\n"


def test_a_step_is_broken_between_its_messages_where_a_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NARROW, str(LEAST))
    command.main(["schedule", "ring", "--ranks", "8", "--elements", "8"])
    shown = capsys.readouterr().out.splitlines()
    steps = [line for line in show_schedule("ring", 8, "float32", 8).splitlines() if "->" in line]
    assert max(map(len, steps)) > LEAST >= max(map(len, shown))
    rows = [line for line in shown if "->" in line]
    whole = [" ".join(pair).split() for pair in zip(rows[::2], rows[1::2], strict=True)]
    assert whole == [each.split() for each in steps]
    assert {line.index("r") for line in rows} == {len("  step 0:  ")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gloo", "--ranks", "0"], "10 elements on 0 ranks"),
        (["gloo", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["ring", "--node", "2"], "--node 2: only the hierarchical schedule has nodes"),
        (["hierarchical", "--ranks", "3"], "3 ranks are not whole nodes of 2: give a multiple of it"),
        (["star"], "invalid choice: 'star'"),
    ],
)
def test_the_command_line_refuses_what_cannot_be(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["schedule", *arguments])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_picture_has_an_arrow_for_each_message(name: str, tmp_path: Path) -> None:
    svg, html = tmp_path / "it.svg", tmp_path / "it.html"
    command.main(["schedule", name, "--elements", "4", "--svg", str(svg), "--html", str(html)])
    root = ElementTree.fromstring(svg.read_text())
    told = [str(each.text) for each in root.iter(f"{SVG}title")]
    messages, _ = schedule(name, 4, 4, 4)
    assert told == [
        f"{each.phase}, step {each.step}: rank {each.sender} sends chunk {each.carries} to rank {each.receiver}: "
        f"{each.elements} elements, {4 * each.elements} bytes"
        for each in messages
    ]
    lanes = {float(each.get("y", 0)) - 4 for each in root.iter(f"{SVG}text") if str(each.text).startswith("rank ")}
    arrows = [each for each in root.iter(f"{SVG}g") if each.get("class") == "message"]
    ends = {float(arrow.find(f"{SVG}line").get(end)) for arrow in arrows for end in ("y1", "y2")}  # type: ignore[union-attr,arg-type]
    assert ends == lanes  # every rank of these schedules sends or receives
    page = html.read_text()
    assert page.count('class="message"') == len(messages)
    assert show_schedule(name, 4, "float32", 4).splitlines()[-1] in page
    assert not [word for word in ("http://", "https://", "src=", "@import", "url(", "<link") if word in page]


def test_the_ranks_of_a_node_are_drawn_together(tmp_path: Path) -> None:
    svg = tmp_path / "it.svg"
    command.main(["schedule", "hierarchical", "--ranks", "6", "--node", "3", "--svg", str(svg)])
    texts = [*ElementTree.fromstring(svg.read_text()).iter(f"{SVG}text")]
    at = {str(each.text): float(each.get("y", 0)) for each in texts}
    lanes = [at[f"rank {rank}"] for rank in range(6)]
    apart = [below - above for above, below in pairwise(lanes)]
    assert apart[0] == apart[1] == apart[3] == apart[4] < apart[2]
    assert at["node 0"] < lanes[0] < lanes[2] < at["node 1"] < lanes[3]
    numbers = [str(each.text) for each in texts if each.get("class") == "number"]
    messages, _ = schedule("hierarchical", 10, 4, 6, 3)
    assert numbers == [each.carries for each in messages]
    assert {"0", "2.1"} < set(numbers)
