"""The conformance report: its pages say what its files say, and what is there is not run again."""

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from lockstep.home import HOME
from lockstep.properties.claims import Claims
from lockstep.properties.conformance import holding, page, versions
from lockstep.properties.conformance.rows import FRAMEWORKS, ROWS, Row
from lockstep.properties.implementations import described
from lockstep.properties.pages import findings
from lockstep.properties.ranks.description import describe
from lockstep.properties.results import known
from lockstep.properties.results.document import Defect, Document, LawEnd, Target, read, write

SAMPLER = Row("torch", "torch_data:TorchSampler")
NAMES = {each.name for each in fields(Claims)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_claims_what_there_is_with_or_without_its_package(row: Row) -> None:
    described(row.target, describe(row.target))
    assert {*getattr(row.adapter, "why", {})} <= NAMES
    assert row.adapter.__doc__


# Adapters of torch's wrappers have their reasons in comments and docstrings.
WITH_REASONS = [row for row in ROWS if row.framework != "torch"]


@pytest.mark.parametrize("row", WITH_REASONS, ids=lambda row: row.name)
def test_every_claim_of_a_package_has_its_reason(row: Row) -> None:
    assert {*row.adapter.claims} <= {*row.adapter.why}


def test_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


PAGES = page.as_written()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_say_what_the_files_say(path: Path) -> None:
    assert path.read_text() == PAGES[path], "write it with `lockstep conformance --pages-only`"


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((), ""),
        (("not claimed",), ""),
        (("holds", "holds"), "10"),
        (("holds", "not claimed"), "5"),
        (("holds", "refuses"), "refuses"),
        (("cannot be judged: D1 breaks every program that it needs",), "?"),
        (("silently wrong",), "**silently wrong**"),
    ],
)
def test_a_cell_tells_how_a_family_has_ended(ends: tuple[str, ...], told: str) -> None:
    laws = tuple(LawEnd(f"P3 law {place}", "sim", end, runs=5) for place, end in enumerate(ends))
    other = LawEnd("P30 another", "sim", "holds", runs=7)
    assert page.cell(Target("a:b", laws=(*laws, other)), "P3") == told


def test_a_cell_names_the_defects_apart_from_which_laws_hold() -> None:
    law = LawEnd("P3 a law", "sim", "holds apart from D2", runs=4, left_out={"D2": 3})
    assert page.cell(Target("a:b", laws=(law,)), "P3") == "4 D2"


def test_a_cell_tells_that_a_run_was_stopped() -> None:
    law = LawEnd("P3 a law", "sim", "holds", runs=4)
    assert page.cell(Target("a:b", laws=(law,)), "P3", stopped=True) == "4 …"
    assert page.cell(Target("a:b", laws=(law,)), "P4", stopped=True) == "…"


def test_versions_stand_side_by_side(tmp_path: Path) -> None:
    laws = (LawEnd("P20 a law", "sim", "holds", runs=5), LawEnd("P21 another", "sim", "not claimed"))
    document = Document("0.1.0", {"torch": "2.13.0"}, "few", "0", ("sim",), False, (Target("a:b", laws=laws),))
    write(document, holding.place_of(SAMPLER, tmp_path))
    defect = Defect("D1", "P20 a law", "sim", "silently wrong", "a cause", "", "", "", ("P20 a law",))
    broken = Target("a:b", (defect,), (replace(laws[0], verdict="broken by D1", defects=("D1",)), laws[1]))
    stopped = replace(document, stopped=True, versions={"torch": "2.14.1"}, targets=(broken,))
    write(stopped, holding.place_of(SAMPLER, versions.folder_of("2.14", tmp_path)))
    (line,) = [line for line in versions.page(tmp_path).splitlines() if "[TorchSampler]" in line]
    assert [cell.strip() for cell in line.split("|")[2:6]] == [
        "not run",
        "not run",
        "holds on 5",
        "**silently wrong** P20, stopped",
    ]


def test_the_table_of_versions_has_every_finding_in_torch() -> None:
    kept = json.loads((findings.FOLDER / versions.SCRIPTS).read_text("utf-8"))
    scripts = {each.path.stem for each in findings.findings() if each.path.parent.name == "torch"}
    assert {".".join(told.split(".")[:2]) for told in kept["ends"]} == {*versions.MINORS}
    assert all(scripts == {*codes} for codes in kept["ends"].values()), "run the scripts with each torch again"


def test_known_failures_are_of_rows_and_have_scripts() -> None:
    for entry in known.every(holding.FOLDER / holding.KNOWN):
        assert entry.implementation in {row.target for row in ROWS}
        assert (Path(HOME) / entry.reason).is_file()


def test_a_row_that_is_there_is_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    holding.hold_all([SAMPLER], tmp_path, 1, 0, said.append)
    place = holding.place_of(SAMPLER, tmp_path)
    first = place.stat().st_mtime_ns
    (target,) = read(place).targets
    assert any(law.verdict == "holds" for law in target.laws)
    holding.hold_all([SAMPLER], tmp_path, 1, 0, said.append)
    assert said[1].endswith("there already")
    assert place.stat().st_mtime_ns == first
    assert not holding.is_there(SAMPLER, tmp_path, 2, 0)
    assert not holding.is_there(SAMPLER, tmp_path, 1, 1)
    write(replace(read(place), stopped=True), place)
    assert not holding.is_there(SAMPLER, tmp_path, 1, 0)


def test_a_row_whose_package_is_missing_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FRAMEWORKS, "none", ("no-such-distribution", ""))
    said: list[str] = []
    holding.hold_all([Row("none", "torch_data:TorchSampler")], tmp_path, 1, 0, said.append)
    assert said == ["1 of 1: none TorchSampler: skipped; none is not installed"]


def test_two_reports_are_compared(tmp_path: Path) -> None:
    for when, verdict in (("before", "holds"), ("after", "silently wrong")):
        laws = (LawEnd("P20 a law", "sim", verdict, runs=5),)
        document = Document("0.1.0", {"torch": when}, when, "", ("sim",), False, (Target("a:b", laws=laws),))
        for name in ("A", "B", when):
            write(document, tmp_path / when / "results" / f"torch-{name}.json")
    command = [sys.executable, "-m", "lockstep", "conformance", "diff", "before", "after"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "changed: P20 a law on sim: holds before, silently wrong after" in done.stdout
    assert done.stdout.splitlines()[-4:] == [
        "only in the first report: torch-before",
        "only in the second report: torch-after",
        "torch: before before, after after",
        "examples: before before, after after",
    ]


def test_a_report_is_filed_without_its_command_and_without_folders() -> None:
    where = f"Where:     rank 0 at {HOME}/impls/naive.py:3, in step.\n"
    told = f"{where}See it:    python \\\n           {HOME}/it.py\nScenario:  x"
    assert holding.portable(told) == "Where:     rank 0 at impls/naive.py:3, in step.\nScenario:  x"
