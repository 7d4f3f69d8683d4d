"""Each finding in torch is a script of its own: its fault is there in the versions that it names."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
FINDINGS = sorted((ROOT / "docs" / "findings").rglob("*.py"))
PARTS = ("Framework", "Law", "Program", "Why", "Documented", "Reports")
COMMON = "# The same in every finding."
BY_CHANCE = {"a-rank-that-has-run-out-says-at-random-which-parameters-are-used"}  # what memory happens to hold


def is_of_this_torch(path: Path) -> bool:
    """Whether the finding was seen with the minor version that is installed."""
    framework = (ast.get_docstring(ast.parse(path.read_text())) or "").split("Framework: ")[1].split(",")[0]
    seen = [int(minor) for minor in re.findall(r"2\.(\d+)", framework)]
    return min(seen) <= int(torch.__version__.split(".")[1]) <= max(seen)


def test_a_finding_says_all_that_there_is_to_say_and_runs_as_the_others_do() -> None:
    assert len(FINDINGS) > 30
    assert len({path.read_text().partition(COMMON)[2] for path in FINDINGS}) == 1
    for path in FINDINGS:
        told = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.findall(r"^([A-Z][a-z]+): ", told, re.MULTILINE) == list(PARTS), path


def test_the_fault_of_each_finding_in_torch_is_still_there() -> None:
    """A script that ends with 0 tells of a fault that is mended: retire it, or say in which versions it was."""
    paths = [path for path in FINDINGS if path.parent.name == "torch" and is_of_this_torch(path)]
    asked = [sys.executable, "-m", "lockstep.properties.tests.run_findings", *map(str, paths)]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True)
    ended = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(ended) == len(paths)
    wrong = [
        each for each in ended if each["code"] != 1 and not (each["code"] == 0 and Path(each["path"]).stem in BY_CHANCE)
    ]
    assert not wrong, "\n".join(f"{each['path']} ended with {each['code']}:\n{each['output']}" for each in wrong)
