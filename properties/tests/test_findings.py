"""Each finding is a script of its own: its defect is there in the version that it names."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from lockstep.properties.pages.findings import Finding, findings

ROOT = Path(__file__).parents[3]
FINDINGS = tuple(findings())
FRAMEWORKS = sorted({each.path.parent.name for each in FINDINGS})
COMMON = "# The same in every finding."
BY_CHANCE = {
    "a-rank-that-has-run-out-says-at-random-which-parameters-are-used",  # what memory happens to hold
    "ddp-a-delayed-all-reduce-is-not-waited-for",  # which is first, the message or the read
}
DISTRIBUTIONS = {"torchft": "torchft-nightly"}  # where a package has another name than its framework


def is_of_this_torch(found: Finding) -> bool:
    """True if the finding was seen with the minor version that is installed."""
    seen = [int(minor) for minor in re.findall(r"2\.(\d+)", found.parts["Framework"].split(",")[0])]
    return min(seen) <= int(torch.__version__.split(".")[1]) <= max(seen)


def seen_with_what_is_installed(framework: str) -> list[Finding]:
    """The findings in a framework that belong to the version that is installed; skips where there is none."""
    of_it = [each for each in FINDINGS if each.path.parent.name == framework]
    if framework == "torch":
        return [each for each in of_it if is_of_this_torch(each)]
    package = DISTRIBUTIONS.get(framework, framework)
    try:
        installed = f"{package} {version(package)}"
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed; `tox -e frameworks` installs it")
    return [each for each in of_it if each.parts["Framework"].startswith((f"{installed},", f"{installed} "))]


def test_every_finding_runs_its_program_as_the_others_do() -> None:
    assert len(FINDINGS) > 50
    assert len({each.path.read_text().partition(COMMON)[2] for each in FINDINGS}) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_defect_of_each_finding_is_still_there(framework: str) -> None:
    """A script that ends with 0 tells of a defect that is mended: retire it, or say in which versions it was."""
    paths = [each.path for each in seen_with_what_is_installed(framework)]
    assert paths, "all findings were seen with another version"
    asked = [sys.executable, "-m", "lockstep.properties.tests.run_findings", *map(str, paths)]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True)
    ended = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(ended) == len(paths)
    wrong = [
        each for each in ended if each["code"] != 1 and not (each["code"] == 0 and Path(each["path"]).stem in BY_CHANCE)
    ]
    assert not wrong, "\n".join(f"{each['path']} ended with {each['code']}:\n{each['output']}" for each in wrong)
