"""What is wrong with ``--impl`` is said in one clear line, quickly, and nothing stays behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from properties.claims import Claims, read_claims
from properties.implementations import Unusable, look_up
from worlds.contract import World
from worlds.tests.outcomes import gone

ROOT = Path(__file__).parents[2]
USER = "properties.tests.user_code"

REFUSED: dict[str, tuple[str, str]] = {
    "unknown module": ("nowhere.to_be:Found", "there is no module 'nowhere' on sys.path"),
    "unknown submodule": ("impls.nowhere:Found", "there is no module 'impls.nowhere' on sys.path"),
    "unknown attribute": ("impls.naive:NaiveDP", "impls.naive has no attribute 'NaiveDP'; it defines NaiveAccumulation, NaiveD"),
    "not callable": (f"{USER}:not_callable", "not_callable is 3, which cannot be called"),
    "no colon": ("impls.naive", "write package.module:attribute or path/to/file.py:attribute"),
    "no attribute": ("impls.naive:", "write package.module:attribute or path/to/file.py:attribute"),
    "no module": (":Naive", "write package.module:attribute or path/to/file.py:attribute"),
    "no file": ("not/there.py:Found", "there is no such file"),
    "unknown claim": (f"{USER}:ClaimsTheImpossible", "there is no claim 'magic'; there are hook_order, accumulation"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_put_under_test_is_refused_in_one_line_that_names_it(sim: World, what: str) -> None:
    name, words = REFUSED[what]
    with pytest.raises(Unusable, match=re.escape(words)) as refused:
        look_up([name], sim)
    assert str(refused.value).startswith("--impl ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise OSError('no such driver')", "OSError: no such driver"),
        ("import nothing_like_it", "No module named 'nothing_like_it'"),
        ("raise SystemExit(4)", "SystemExit: 4"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_file_that_fails_on_import_is_refused_with_what_it_raised(
    sim: World, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "somebodys.py"
    file.write_text(text)
    with pytest.raises(Unusable, match=re.escape(words)) as refused:
        look_up([f"{file}:Mine"], sim)
    assert f"--impl {file}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"unused": "dropped"}, "unused is None or one of 'untouched', 'zero', not 'dropped'"),
        ({"averaging": "median"}, "averaging is one of 'sum then divide'"),
        ({"accumulation": True}, "accumulation needs a method no_sync"),
        ({"bucket_cap": True}, "bucket_cap needs a constructor argument"),
        ({"hook_orders": True}, "there is no claim 'hook_orders'"),
    ],
)
def test_a_claim_that_cannot_be_is_refused(declared: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_claims(declared, has_no_sync=False, takes_cap=False)


def test_code_that_declares_nothing_claims_what_its_shape_says() -> None:
    assert read_claims(None, has_no_sync=False, takes_cap=False) == Claims(accumulation=False)
    assert read_claims(None, has_no_sync=True, takes_cap=True) == Claims(accumulation=True, bucket_cap=True)
    assert read_claims({"bucket_cap": False}, has_no_sync=True, takes_cap=True) == Claims(bucket_cap=False)


def run_pytest(folder: Path, *arguments: str, allowed: float = 60.0) -> tuple[int, str]:
    """The exit code and output of pytest on the laws, started in a folder of its own. No process of it is left."""
    environment = {**os.environ, "PYTHONPATH": "", "TMPDIR": str(folder), "LOCKSTEP_TEST": str(folder)}
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *arguments]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=allowed, check=False)
    assert gone(started_with(f"LOCKSTEP_TEST={folder}"))
    return run.returncode, run.stdout + run.stderr


def started_with(setting: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if setting.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


MEAN = str(ROOT / "properties" / "test_mean.py") + "::test_gradients_equal_the_mean_over_ranks"


def test_pytest_says_it_in_one_line_and_collects_nothing(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, MEAN, "--impl", "nowhere.to_be:Found")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert output.strip() == "ERROR: --impl nowhere.to_be:Found: there is no module 'nowhere' on sys.path"


def test_a_constructor_that_raises_is_a_refusal_of_one_line(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, MEAN, "--impl", f"{USER}:RefusesToBeBuilt", "--world", "sim")
    assert code == pytest.ExitCode.TESTS_FAILED
    told = [line for line in output.splitlines() if "refused all" in line]
    assert told
    assert all("so nothing was checked: RuntimeError: this wrapper needs a GPU" in line for line in told)
    assert "Traceback" not in output
    assert re.search(r"gradients equal the mean over ranks +refuses on sim", output)


def test_an_implementation_that_hangs_is_told_at_once(tmp_path: Path) -> None:
    """The simulated world sees a deadlock without a clock."""
    code, output = run_pytest(tmp_path, MEAN, "--impl", f"{USER}:WaitsForNobody", "--world", "sim")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in output
    assert "rank 0 waits for barrier" in output
    assert re.search(r"gradients equal the mean over ranks +hangs on sim", output)


def test_a_file_of_ones_own_is_found_from_where_pytest_is_started(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from impls.naive import NaiveAccumulation as Mine\n")
    for name in ("mine.py:Mine", "mine:Mine"):
        code, output = run_pytest(tmp_path, MEAN, "--impl", name, "--world", "sim")
        assert code == pytest.ExitCode.OK, output
