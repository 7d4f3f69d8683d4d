"""Whoever holds many implementations against the laws at once is told how little is tried of each."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.properties.running import profiles

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("implementations", "told"), [(1, False), (3, False), (4, True), (7, True)])
def test_a_few_shared_examples_are_told(implementations: int, told: bool) -> None:
    words = profiles.told_if_few("sim", implementations, "dev")
    assert bool(words) == told
    assert not told or f"only {30 // implementations} of each on sim" in words


def test_the_header_tells_how_many_and_the_summary_that_they_are_few() -> None:
    places = ("lockstep.impls.naive", f"{ROOT}/impls/naive.py")
    names = [f"{place}:{name}" for place in places for name in ("NaiveDataParallel", "NaiveAccumulation")]
    run = [sys.executable, "-m", "pytest", "properties/test_mean.py", "-k", "equal_the_mean", "--world", "sim"]
    asked = [*run, "--hypothesis-profile", "dev", "-p", "no:cacheprovider", *(f"--impl={name}" for name in names)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lockstep: examples per law: 7 on sim (profile dev)\n" in done.stdout
    assert "Few examples: with 4 implementations, each law gets only 7 of each on sim." in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["in one process", "with a worker"])
def test_a_run_that_is_stopped_says_that_laws_are_missing(workers: tuple[str, ...], tmp_path: Path) -> None:
    run = [sys.executable, "-m", "pytest", f"{ROOT}/properties/test_mean.py", "-qx", "-k", "equal_the_mean", *workers]
    asked = [*run, "--world", "sim", "--hypothesis-profile", "dev", "-p", "no:cacheprovider"]
    asked += ["--impl", f"{ROOT}/properties/tests/user_code.py:RefusesToBeBuilt"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    last = done.stdout[done.stdout.index("= verdicts =") :]
    assert "refuses on sim" in last, done.stdout + done.stderr
    assert "The run was stopped early. Laws that are missing here had not ended." in last
    assert "FAILED" not in last


def test_failed_tests_stand_after_the_verdicts_of_the_suite(tmp_path: Path) -> None:
    """The end of a log names what failed, and not a hundred laws that hold."""
    failing = tmp_path / "test_failing.py"
    failing.write_text("def test_failing():\n    assert False\n")
    run = [sys.executable, "-m", "pytest", "properties/test_collectives.py", str(failing), "--world", "sim"]
    asked = [*run, "-k", "(may_have_collectives and NaiveDataParallel) or test_failing", "--hypothesis-profile", "dev"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert "P5  the caller may have collectives" in done.stdout, done.stdout + done.stderr
    assert done.stdout.index("= verdicts =") < done.stdout.index("= short test summary info =")
    assert "test_failing - assert False" in done.stdout.splitlines()[-2]
