"""`lockstep schedule` prints what the oracle knows, and draws each message once."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from lockstep import command
from lockstep.oracle.schedules import ORDER_OF, schedule, show_schedule

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ORDER_OF)
def test_every_schedule_can_be_printed_from_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["schedule", name, "--ranks", "3", "--elements", "4"])
    assert capsys.readouterr().out == show_schedule(name, 4, "float32", 3) + "\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gloo", "--ranks", "0"], "10 elements on 0 ranks"),
        (["gloo", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["star"], "invalid choice: 'star'"),
    ],
)
def test_the_command_line_refuses_what_cannot_be(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["schedule", *arguments])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ORDER_OF)
def test_a_picture_has_an_arrow_for_each_message(name: str, tmp_path: Path) -> None:
    svg, html = tmp_path / "it.svg", tmp_path / "it.html"
    command.main(["schedule", name, "--elements", "4", "--svg", str(svg), "--html", str(html)])
    root = ElementTree.fromstring(svg.read_text())
    told = [str(each.text) for each in root.iter(f"{SVG}title")]
    messages, _ = schedule(name, 4, 4, 4)
    assert told == [
        f"{each.phase}, step {each.step}: rank {each.sender} sends chunk {each.chunk} to rank {each.receiver}: "
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
