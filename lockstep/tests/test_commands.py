"""What can be run as a command says what it does when it is asked, and does nothing else then; what is wrong is said in
one line.
"""

import contextlib
import importlib
import json
import re
from pathlib import Path

import pytest

from lockstep import __version__, command
from lockstep.commands.check import _as_keyword
from lockstep.properties.reports.paragraphs import NARROW

ROOT = Path(__file__).parents[2]
PACKAGES = ("oracle", "worlds", "impls", "properties", "benchmarks")
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in PACKAGES
    for path in sorted((ROOT / "lockstep" / package).rglob("*.py"))
    if re.search(r'^if __name__ == "__main__":$', path.read_text(), re.MULTILINE)
    and path.name != "compile_only.py"  # which tests start, and which compiles for a GPU when it is imported
]
SCREEN = 40  # lines


@pytest.mark.parametrize("module", MODULES)
def test_a_module_asked_for_help_gives_it_under_its_own_name(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert " ".join(shown.split()).startswith(f"usage: python -m {module.removesuffix('.__main__')} [-h]")
    assert not shown.split("\n\n")[1].startswith(("options:", "positional arguments:")), "it says what it does"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """The exit code of the command, and what it prints on either stream."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    shown = capsys.readouterr()
    return ended.value.code, shown.out, shown.err


@pytest.mark.parametrize("name", command.COMMANDS)
def test_the_help_of_a_command_fits_on_a_screen_and_has_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = run(capsys, name, "--help")
    assert code == 0
    assert shown.startswith(f"usage: lockstep {name}")
    assert len(shown.splitlines()) <= SCREEN
    assert f"  lockstep {command.COMMANDS[name][1]}" in shown


def test_the_first_page_names_every_command_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {name} " in shown for name in command.COMMANDS)
    assert re.findall(r"\b(0|1|2|3|5|130)  \w", shown) == ["0", "1", "2", "3", "5", "130"]
    assert run(capsys)[:2] == (2, shown)
    assert run(capsys, "--version")[:2] == (0, f"lockstep {__version__}\n")


WRONG = {
    "no target": (["check"], "lockstep check: name a TARGET, package.module:Name or path/to/file.py:Name"),
    "a word": (["check", "my_ddp"], "my_ddp: write package.module:Name or path/to/file.py:Name"),
    "a file": (
        ["check", "my_ddp.py"],
        "my_ddp.py: write my_ddp.py:Name, where Name is a class or function in that file",
    ),
    "a folder": (["check", "/"], "/: this is a folder; write path/to/file.py:Name"),
    "a cache": (["check", "a:B", "--lf"], "--lf: Lockstep keeps no pytest cache"),
    "a cache behind": (["check", "a:B", "--", "--cache-clear"], "--cache-clear: Lockstep keeps no pytest cache"),
    "a root": (["check", "a:B", "--", "--rootdir=x"], "--rootdir=x: the laws are not files of your project"),
    "a test file": (["check", "a:B", "--", "test_mine.py"], "test_mine.py: the laws are not files of your project"),
    "an implementation": (["check", "a:B", "--impl", "c:D"], "--impl: write the target directly after `check`"),
    "words that are no expression": (["check", "a:B", "-k", "P1 or"], "-k P1 or: write words of a law's name"),
    "laws that are called": (["check", "a:B", "-k", "P1 (P3)"], "-k P1 (P3): write words of a law's name"),
    "an unknown option": (
        ["check", "a:B", "--fast"],
        "--fast: there is no such option; options of pytest go after `--`",
    ),
    "a world": (["check", "a:B", "--world", "mars"], "argument --world: invalid choice: 'mars'"),
    "a seed": (["check", "a:B", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
    "a size": (["exhaust", "a:B", "--size", "3"], "--size 3: the smallest program has 4 parts"),
    "a part": (["exhaust", "a:B", "--shard", "3/2"], "--shard 3/2: write I/N, with I from 1 to N, such as 2/4"),
    "processes": (["exhaust", "a:B", "-n", "two"], "-n two: give a number of processes, or auto"),
    "no program": (["exhaust", "my_ddp"], "my_ddp: write package.module:Name or path/to/file.py:Name"),
    "a command": (["chekc"], "lockstep: argument COMMAND: invalid choice: 'chekc'"),
    "a result": (["diff", "none.json", "none.json"], "lockstep diff: none.json: No such file or directory"),
    "a law": (["laws", "P99"], "lockstep laws: P99: no law has this number or these words in its name"),
    "a claim": (["claims", "unsed"], "lockstep claims: unsed: there is no such claim; did you mean unused?"),
    "ranks": (["world", "--ranks", "0"], "lockstep world: --ranks 0 and --elements 13: both must be at least 1"),
    "a schedule": (["schedule", "star"], "lockstep schedule: argument NAME: invalid choice: 'star'"),
    "a run of nothing": (["run"], "lockstep run: name a TARGET, for example `lockstep run my_ddp:MyDDP`"),
    "a batch of nodes": (["cost", "--ranks", "6", "--node", "4"], "lockstep cost: 6 ranks are not whole nodes of 4"),
    "cost of what": (["cost", "7"], "lockstep cost: unrecognized arguments: 7"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_use_is_told_on_lines_that_fit(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments, words = WRONG[what]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    assert all(len(line) < 80 for line in err.splitlines())
    assert err.count("lockstep") == 1 + err.count("`lockstep"), "it is one paragraph"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "torch.utils.data:DataLoader",
            "is a sampler or a data loader: `lockstep run` needs a class that wraps",
        ),
        ("torch.nn:Linear", "it is called as Linear(module), and Linear.__init__() missing 1 required"),
    ],
)
def test_a_run_of_a_target_that_trains_no_model_ends_in_one_line(
    target: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "run", "--compare", target)
    assert (code, out) == (2, "")
    assert f"lockstep run: {target}" in err
    assert words in " ".join(err.split())


def test_laws_and_claims_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["laws"])
    laws = capsys.readouterr().out.splitlines()
    assert len(laws) > 110
    assert len({line.split()[0] for line in laws}) == 21
    command.main(["laws", "P6"])
    assert "Why: " in capsys.readouterr().out
    command.main(["claims"])
    assert "sixteen_bits             Parameters, or the inputs of a collective," in capsys.readouterr().out
    command.main(["claims", "unused"])
    shown = capsys.readouterr().out
    assert "values      None, 'untouched', 'zero'" in shown
    assert "needed by   P5 no rank waits for ever where ranks use different parameters" in shown


@pytest.mark.parametrize(
    "asked",
    [
        ("claims",),
        ("laws",),
        ("cost", "--model", "gpt2", "--node", "8"),
        ("cost", "--parameters", "7e9"),
        ("schedule", "hierarchical", "--ranks", "8", "--node", "4"),
        ("check", "--help"),
        ("run", "--help"),
    ],
)
def test_lines_fit_a_terminal_of_80_columns(
    asked: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv(NARROW, "79")
    with contextlib.suppress(SystemExit):  # of --help
        command.main(asked)
    out = capsys.readouterr().out
    assert out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_laws_are_chosen_by_their_words_their_numbers_or_an_expression_of_both() -> None:
    assert _as_keyword("replicas are bitwise") == "replicas_are_bitwise"
    assert _as_keyword("equal_the_mean or no_sync") == "equal_the_mean or no_sync"
    assert _as_keyword("P99") == "(P99)"
    assert _as_keyword("equal the mean, no_sync") == "(equal_the_mean) or (no_sync)"
    chosen = _as_keyword("p6 and not nobody")
    assert chosen.startswith("(test_")
    assert "test_a_parameter_that_some_ranks_used_gets_the_mean_on_all or test_" in chosen
    assert chosen.endswith(") and not nobody")


def test_a_schedule_costs_and_an_order_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["schedule", "ring", "--ranks", "2"])
    assert "r0 -(0)-> r1" in capsys.readouterr().out
    command.main(["cost"])
    costs = capsys.readouterr().out
    assert "4.1875" in costs
    assert "31.41" in costs
    assert sum(line.endswith("best") for line in costs.splitlines()) == 1
    command.main(["cost", "--model", "gpt2", "--json"])
    assert json.loads(capsys.readouterr().out)["parameters"] == 124_439_808
    command.main(["world", "--world", "sim", "--ranks", "3"])
    assert "((r0+r1)+r2)" in capsys.readouterr().out
