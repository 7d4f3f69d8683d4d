"""Results for machines: the document, its differences, known failures, and the marks on GitHub."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import command as command_line
from lockstep.properties.defects.needs import MORE
from lockstep.properties.implementations import Unusable
from lockstep.properties.reports.facts import Facts
from lockstep.properties.results import document, known
from lockstep.properties.results.advice import ADVICE, MOST, advice
from lockstep.properties.results.annotations import annotations
from lockstep.properties.results.diff import differences
from lockstep.properties.results.document import Document, targets
from lockstep.properties.results.explained import explained
from lockstep.properties.results.run import Results
from lockstep.properties.results.settled import mended, settle
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.verdict import HOLDS, NOT_CLAIMED, REFUSES

NAME = "my_package.ddp:MyDDP"
LAWS = {
    "P1": "gradients equal the mean over ranks",
    "P4": "replicas are bitwise equal after construction and after every step",
}
FIELDS = {  # of schema 1: what is taken away, or changes, makes another number
    document.Document: "schema lockstep versions profile seed worlds stopped targets mended started seconds",
    document.Target: "name defects laws",
    document.Defect: "id law world verdict cause scenario script report laws needs claim known diagnosis",
    Facts: "where clash sends missing guess",
    document.LawEnd: "law world verdict runs refused defects left_out known",
}
WRONG = "lockstep.properties.tests.user_kernels:ForgetsStrides"


def failure(cause: str, verdict: str = "silently wrong") -> dict[str, Any]:
    """As a law files it."""
    told = {"verdict": verdict, "report": f"MyDDP breaks P1: {verdict}\n\nWhy: 50%", "script": "", "scenario": cause}
    return {**told, "cause": cause, "plain": True, "size": len(cause)}


def row(
    number: str, *failures: dict[str, Any], verdict: str = "", examples: int = 10, world: str = "sim"
) -> dict[str, Any]:
    """What a law has filed."""
    ended = verdict or (failures[0]["verdict"] if failures else HOLDS)
    filed = {"number": number, "law": LAWS[number], "implementation": NAME, "world": world, "verdict": ended}
    return {**filed, "examples": examples, **({"failures": list(failures)} if failures else {})}


def run(*rows: dict[str, Any], torch: str = "2.13.0") -> Document:
    """A run in which laws have filed these."""
    return Document("0.1.0", {"torch": torch}, "dev", "1", ("sim",), False, targets(rows), seconds=2.0)


def test_a_defect_of_the_last_run_is_explained_with_its_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results({"--report": str(tmp_path / "report"), "--impl": NAME}.get)
    ask = ["check", "--report", str(tmp_path / "report"), "--explain"]
    about = {"lockstep": "0.1.0", "versions": {}, "profile": "dev", "seed": "1", "worlds": ("sim",), "stopped": False}
    results.keep([row("P1")], **about)
    assert not (tmp_path / "report").exists(), "nothing is kept of a run without a defect"
    with pytest.raises(SystemExit, match="2"):
        command_line.main([*ask, "D1"])
    assert "no run has kept a defect in" in " ".join(capsys.readouterr().err.split())
    results.keep([row("P1", failure("hooks fire in another order")), row("P4")], **about)
    command_line.main([*ask, "d1"])
    told = capsys.readouterr().out
    assert told.startswith(f"D1 of {NAME}: silently wrong\n")
    assert "    Why: this makes a step on N ranks a step on the whole batch." in told
    assert "Find the first column on the wire in which you did not expect those values." in " ".join(told.split())
    assert told.endswith("MyDDP breaks P1: silently wrong\n\nWhy: 50%\n")
    with pytest.raises(SystemExit, match="2"):
        command_line.main([*ask, "D2"])
    assert "--explain D2: the last run has no such defect; it has D1" in " ".join(capsys.readouterr().err.split())


FOUND = {
    "where": ["rank 0 at my_ddp.py:23, in finish", "rank 1 at my_ddp.py:16, in reduce"],
    "clash": "1. all_reduce(sum, 1 x float32)",
    "sends": ["rank 0 sends a[0] = 0.5", "rank 1 sends b[0] = 7.5"],
    "missing": "",
    "guess": "zeros",
}


def test_an_explanation_says_what_the_diagnosis_has_found() -> None:
    """The data of the first report, and no words of any."""
    (target,) = run(row("P1", {**failure("hooks"), "diagnosis": FOUND})).targets
    told = " ".join(" ".join(explained(NAME, target.defects[0])).split())
    called = "In collective 1. all_reduce(sum, 1 x float32), ranks send gradients of different parameters:"
    assert f"{called} rank 0 sends a[0] = 0.5; rank 1 sends b[0] = 7.5." in told
    lines = "rank 0 at my_ddp.py:23, in finish; rank 1 at my_ddp.py:16, in reduce."
    assert f"These lines of code are concerned: {lines}" in told
    assert "The wrong values are exactly these: zeros." in told
    lacks = dataclasses.replace(target.defects[0], diagnosis=Facts(missing="No collective is called."))
    assert "No collective is called. Find the call that should" in " ".join(" ".join(explained(NAME, lacks)).split())
    words = "MyDDP breaks P1\n\nA guess:   zeros.\n       rank 0 sends | a[0] = 1 |\n  different parameters meet here"
    plain = " ".join(explained(NAME, dataclasses.replace(target.defects[0], report=words, diagnosis=Facts())))
    assert not any(each in plain for each in ("In collective", "are concerned", "are exactly these"))


def test_advice_goes_by_the_cause_and_each_cause_exists() -> None:
    assert ADVICE.keys() <= {*FEATURES, *MORE}
    assert list(advice(())) == list(advice(("2 parameters", "Step", "model:thaws"))) == []
    assert list(advice(("accumulation", "nested", "zero grad"))) == [ADVICE["nested"], ADVICE["zero grad"]]
    assert list(advice(("move", "replace"))) == [ADVICE["move"]]
    assert len(list(advice((*FEATURES,)))) == MOST
    (rounded,) = advice(("numbers with more digits than bfloat16",))
    assert '"wire_dtype": "bfloat16"' in rounded
    sentences = [part for words in ADVICE.values() for part in re.split(r"(?<=[.;:]) ", words)]
    assert max(len(each.split()) for each in sentences) <= 35
    defect = document.Defect("D1", f"P1 {LAWS['P1']}", "sim", "hangs", "unused", "", "", "", (), needs=("unused",))
    assert ADVICE["unused"] in " ".join(" ".join(explained(NAME, defect)).split())
    assert "How to read" not in " ".join(explained(NAME, defect)), "it is no program"


def test_the_schema_has_these_fields() -> None:
    assert document.SCHEMA == 1
    for kind, names in FIELDS.items():
        assert {each.name for each in dataclasses.fields(kind)} == {*names.split()}
        said = " ".join((kind.__doc__ or "").split())
        assert all(f"``{name}``" in said for name in names.split())


def test_a_document_says_which_laws_a_defect_breaks_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    told = run(row("P4", failure("A"), failure("B", "hangs")), row("P1", failure("A")), row("P1", world="gloo"))
    (target,) = told.targets
    assert [(each.id, each.law[:2], each.verdict, len(each.laws)) for each in target.defects] == [
        ("D1", "P1", "silently wrong", 2),
        ("D2", "P4", "hangs", 1),
    ]
    assert [(law.law[:2], law.world, law.defects) for law in target.laws] == [
        ("P1", "gloo", ()),
        ("P1", "sim", ("D1",)),
        ("P4", "sim", ("D1", "D2")),
    ]
    document.write(told, tmp_path / "run.json")
    assert document.read(tmp_path / "run.json") == told
    later = json.loads((tmp_path / "run.json").read_text()) | {"of_a_later_version": 3}
    (tmp_path / "later.json").write_text(json.dumps(later))
    assert document.read(tmp_path / "later.json") == told


def test_a_defect_that_was_filed_is_told_as_it_is() -> None:
    face = failure("A") | {"defect": "D1"}
    defect: dict[str, Any] = {
        "id": "D1",
        "number": "P1",
        "law": LAWS["P1"],
        "world": "sim",
        "verdict": "silently wrong",
    }
    defect |= {"cause": "different hook orders", "needs": ["hook order"], "claim": "hook_order", "faces": [face]}
    found = row("P4", face) | {"defects": [defect | {"scenario": "A", "script": ""}], "broken_by": ["D1"]}
    (target,) = run(found, row("P1", failure("B")) | {"left_out": {"D1": 3}}).targets
    assert [(each.id, each.law[:2], each.what, each.laws) for each in target.defects] == [
        ("D1", "P1", ("hook order",), (f"P4 {LAWS['P4']}",)),
        ("D2", "P1", ("B", "silently wrong"), (f"P1 {LAWS['P1']}",)),
    ]
    assert [(law.defects, law.left_out) for law in target.laws] == [(("D2",), {"D1": 3}), (("D1",), {})]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no", "is not JSON"),
        ('{"schema": 2}', "its schema is 2, and this Lockstep reads schema 1"),
        ("[]", "its schema is None"),
        ('{"schema": 1}', "missing"),
        ('{"schema": 1, "targets": [{"name": 3}]}', "targets[0].name is 3, and must be of the type str"),
        ('{"schema": 1, "worlds": "sim"}', "worlds is 'sim', and must be of the type tuple"),
    ],
)
def test_what_is_no_document_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "it.json").write_text(text)
    with pytest.raises(Unusable, match=re.escape(words)) as told:
        document.read(tmp_path / "it.json")
    assert "\n" not in str(told.value)


def test_differences_are_new_mended_changed_or_of_examples() -> None:
    before = run(row("P1", failure("A")), row("P4"))
    assert differences(before, before) == ([], False)
    assert differences(before, run(row("P1"), row("P4", examples=5), torch="2.14.0")) == (
        [
            NAME,
            "  mended: silently wrong in P1 gradients equal the mean over ranks",
            "  changed: P1 gradients equal the mean over ranks on sim: silently wrong before, holds after",
            f"  fewer examples: P4 {LAWS['P4']} on sim: 10 before, 5 after",
            "torch: 2.13.0 before, 2.14.0 after",
        ],
        False,
    )
    lines, worse = differences(before, run(row("P1", failure("A")), row("P4", failure("B", "hangs"), failure("A"))))
    assert worse
    assert f"  new: hangs in P4 {LAWS['P4']}" in lines
    assert f"  changed: P4 {LAWS['P4']} on sim: holds before, hangs after" in lines
    assert differences(run(row("P1"), row("P4")), run(row("P1"))) == (
        [NAME, f"  only before: P4 {LAWS['P4']} on sim: holds"],
        False,
    )
    assert differences(run(row("P1")), run(row("P1", verdict=REFUSES)))[1]
    assert not differences(run(row("P1")), run(row("P1", verdict=NOT_CLAIMED)))[1]
    # Two defects may need the same.
    (told,) = run(row("P1", failure("A"), failure("A", "hangs"))).targets
    alike = tuple(dataclasses.replace(each, needs=("clip",)) for each in told.defects)
    both, one = (
        dataclasses.replace(run(), targets=(dataclasses.replace(told, defects=some),)) for some in (alike, alike[:1])
    )
    assert differences(one, both) == ([NAME, "  new: hangs in P1 gradients equal the mean over ranks"], True)
    assert differences(both, both) == ([], False)
    # A law that was not held again says nothing of a defect.
    assert (
        "  not met: silently wrong in P1 gradients equal the mean over ranks" in differences(before, run(row("P4")))[0]
    )


def entries(text: str, folder: Path) -> tuple[known.Known, ...]:
    """The entries of such a file."""
    (folder / "known.toml").write_text(text)
    return known.read(folder / "known.toml")


def entry(**values: Any) -> str:
    """An entry of a file."""
    told = {"implementation": NAME, "reason": "hooks", **values}
    return "[[known]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())


def test_what_is_known_fails_nothing_and_what_is_new_does(tmp_path: Path) -> None:
    by_cause, by_law = entries(entry(cause="A", report="http://x"), tmp_path), entries(entry(law="P4"), tmp_path)
    both = row("P4", failure("A"), failure("B"))
    assert settle(both, by_cause) == ""
    assert [each.get("known") for each in both["failures"]] == ["hooks (http://x)", None]
    assert settle(row("P4", failure("A"), failure("B")), by_law) == "hooks"
    assert settle(row("P1", failure("A")), by_law) == ""
    assert settle(row("P4", verdict=REFUSES), by_law) == "hooks"
    assert settle(row("P4", verdict=REFUSES), by_cause) == ""
    assert settle(row("P1", failure("A")), entries(entry(cause="A", verdict="hangs"), tmp_path)) == ""
    assert settle(row("P1", failure("A")), entries(entry(cause="A", implementation="other:MyDDP"), tmp_path)) == ""
    for versions, there in ((["torch>=2"], True), (["torch<2"], False), (["no-such-package"], False)):
        assert bool(entries(entry(cause="A", versions=versions), tmp_path)) == there


def test_what_is_listed_and_fails_no_more_is_mended(tmp_path: Path) -> None:
    of_law, of_cause = entries(entry(law="P1", cause="A"), tmp_path), entries(entry(cause="A"), tmp_path)
    held = [row("P1"), row("P4")]
    assert mended(held, of_law, complete=False) == list(of_law)
    assert mended(held, of_cause, complete=True) == list(of_cause)
    assert mended(held, of_cause, complete=False) == []
    assert mended([row("P4")], of_law, complete=True) == []  # that law was not held
    assert mended([row("P1", verdict="not judged: the backend is at fault")], of_law, complete=True) == []
    for failures in ([failure("A")], [failure("B")]):  # still there, or hidden by what is new
        rows = [row("P1", *failures), row("P4")]
        for each in rows:
            settle(each, of_law)
        assert mended(rows, of_law, complete=True) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "is not TOML"),
        ("a = 1", "it may contain [[known]] tables only"),
        (entry(law="P99"), "entry 1: there is no law 'P99'"),
        (entry(), "entry 1: names neither a law nor a cause"),
        (entry(law="P1", reason=""), "entry 1: has no reason"),
        (entry(law="P1", why="x"), "entry 1: there is no 'why'"),
        (entry(law="P1", verdict=3), "entry 1: each value must be a string"),
        (entry(law="P1", versions=["torch 2.13"]), "'torch 2.13' is no version; write 'torch>=2.13,<2.15'"),
    ],
)
def test_what_is_no_file_of_known_failures_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Unusable, match=re.escape(words)):
        entries(text, tmp_path)


def test_a_first_file_covers_what_failed_and_nothing_else(tmp_path: Path) -> None:
    rows = [row("P4", failure('A "quoted"\n'), failure("B", "hangs")), row("P1", verdict=REFUSES)]
    written = entries(known.written(known.new_ones(rows)), tmp_path)
    assert written == known.new_ones(rows)
    assert all(settle(each, written) for each in rows)
    assert settle(row("P1", failure("C")), written) == ""
    assert known.new_ones(rows) == ()


def test_github_is_told_of_each_defect_at_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\n\nclass MyDDP:\n    pass\n")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    filed = row("P1", failure("A")) | {"implementation": f"{tmp_path}/mine.py:MyDDP"}
    title = "MyDDP%3A silently wrong (P1 gradients equal the mean over ranks)"
    assert list(annotations(run(filed))) == [f"::error file=mine.py,line=4,title={title}::Why: 50%25"]
    filed["failures"][0]["known"] = "hooks"
    assert list(annotations(run(filed))) == [f"::notice file=mine.py,line=4,title={title}::known: hooks"]


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and output of `lockstep`."""
    asked = [sys.executable, "-m", "lockstep", *arguments]
    ran = subprocess.run(asked, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_run_is_kept_as_data_repeats_itself_and_knows_what_is_known(tmp_path: Path) -> None:
    asked = ("check", WRONG, "--world", "sim", "--in-process", "-k", "pack_puts or repeats_its_bits", "--seed", "1")
    code, output = command(tmp_path, *asked, "--json", "first.json", "--write-known", "known.toml")
    assert code == 1, output
    with (tmp_path / "known.toml").open("a") as file:
        file.write(entry(implementation=WRONG, law="a norm repeats its bits"))
    code, output = command(tmp_path, *asked, "--json", "second.json", "--known", "known.toml")
    assert code == 1, output
    assert "known: wrong on one process" in output
    assert "1 failure is known, and does not fail the run." in output
    assert f"No longer fails; remove it from the file of known failures: {WRONG}: a norm repeats its bits" in output
    first, second = (document.read(tmp_path / f"{name}.json") for name in ("first", "second"))
    (defect,) = first.targets[0].defects
    assert (defect.law, defect.verdict) == ("P17 pack puts every element at its place", "wrong")
    assert [(law.verdict, law.known) for law in second.targets[0].laws] == [(HOLDS, False), ("wrong", True)]
    assert without_times(first) == without_times(second)


def without_times(told: Document) -> Document:
    """A run without what may differ in another of the same seed, and without what is known."""
    (target,) = told.targets
    defects = tuple(dataclasses.replace(each, known="") for each in target.defects)
    laws = tuple(dataclasses.replace(each, known=False) for each in target.laws)
    same = dataclasses.replace(target, defects=defects, laws=laws)
    return dataclasses.replace(told, targets=(same,), started="", seconds=0.0, mended=())


def test_what_is_known_passes_a_check_and_what_is_mended_does_not(tmp_path: Path) -> None:
    for law, passes in (("pack puts every element at its place", True), ("a norm repeats its bits", False)):
        (tmp_path / "known.toml").write_text(entry(implementation=WRONG, law=law))
        result = lockstep.check(WRONG, laws=law, examples=20, seed=1, known=tmp_path / "known.toml")
        assert result.passed == passes
        assert result.failures == ()
        assert ("known: wrong" in str(result), "No longer fails" in str(result)) == (passes, not passes)


def test_two_runs_are_compared_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rows in (("a", [row("P1")]), ("b", [row("P1", failure("A"))])):
        document.write(run(*rows), tmp_path / f"{name}.json")
    for pair, code, words in (("aa", 0, "the same verdicts"), ("ab", 1, "new: silently wrong"), ("ba", 0, "mended: ")):
        with pytest.raises(SystemExit) as ended:
            command_line.main(["diff", *(str(tmp_path / f"{name}.json") for name in pair)])
        assert ended.value.code == code
        assert words in capsys.readouterr().out
