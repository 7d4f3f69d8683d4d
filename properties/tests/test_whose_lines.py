"""Lines and tensors are a user's own in whatever folder: in one that is called like Python's or Lockstep's, too."""

import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lockstep import properties, worlds
from lockstep.properties.ranks.held_bytes import Scales
from lockstep.properties.reports.whereabouts import whereabouts
from lockstep.worlds.contract import RankError, RankReport

SUITE, INSTALLED = Path(properties.__file__).parent, Path(torch.__file__).parent.parent
TORCH, PYTHON = f"{INSTALLED}/torch/nn/modules/module.py", threading.__file__


def told(*files: str) -> list[str]:
    """What is said of a traceback through these files, the innermost last."""
    lines = [f'  File "{file}", line {number}, in call' for number, file in enumerate(files, 1)]
    return whereabouts((RankReport(None, RankError("error", "It failed.", "\n".join(lines)), ()),))


@pytest.mark.parametrize(
    "mine",
    [
        *(
            "/home/me/multiprocessing_ddp/my.py",
            "/home/me/my_threading.py",
            "/home/me/threading.py",
            "/srv/lib/python3/my.py",
        ),
        *(f"{SUITE}_of_mine/my.py", f"{SUITE.parent}/worlds_of_mine/my.py", f"{INSTALLED}/torchtitan/my.py"),
    ],
)
def test_a_failure_is_told_at_the_users_innermost_line(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # paths below it are told from there
    assert told(f"{SUITE}/ranks/program.py", mine, TORCH, PYTHON) == [f"rank 0 at {mine}:2, in call"]
    assert told(f"{SUITE}/ranks/program.py", TORCH, PYTHON, f"{SUITE.parent}/worlds/pool.py") == []


def test_a_line_of_their_own_comes_before_one_of_what_is_installed() -> None:
    assert told("/home/me/my.py", f"{INSTALLED}/torchtitan/my.py") == ["rank 0 at /home/me/my.py:1, in call"]


@pytest.mark.parametrize(
    ("innermost", "then"),
    [
        (f"{INSTALLED}/torch/utils/file_baton.py", " (then torch/utils/file_baton.py:1, in call)"),
        (PYTHON, " (then threading.py:1, in call)"),
        (f"{SUITE.parent}/worlds/sim/baton.py", ""),
    ],
)
def test_of_a_hang_it_is_told_what_the_users_line_has_called(innermost: str, then: str) -> None:
    """In its own thread; another may come first."""
    mine = [(innermost, 1), ("/home/me/my.py", 2), (f"{SUITE}/ranks/program.py", 3)]
    threads = [[(f"{INSTALLED}/torch/other.py", 7)], mine]
    lines = []
    for number, frames in enumerate(threads):
        lines += [f"Thread 0x{number} (most recent call first):"]
        lines += [f'  File "{file}", line {line} in call' for file, line in frames]
    report = RankReport(None, RankError("timeout", "no answer", "\n".join(lines)), ())
    assert whereabouts((report,)) == [f"rank 0 at /home/me/my.py:2, in call{then}"]


@pytest.mark.parametrize("package", [properties, worlds])
def test_what_a_package_called_like_ours_makes_counts_as_the_implementations(package: ModuleType) -> None:
    folder, scales = Path(str(package.__file__)).parent, Scales()
    scales.in_a_micro_batch = True
    for file, counted in ((f"{folder}_of_mine/my.py", 16), (f"{folder}/probes.py", 0)):
        with scales:
            names = {"torch": torch}
            exec(compile("kept = torch.zeros(4)", file, "exec"), names)
            assert scales.bytes(of_all=False) == counted
            del names["kept"]
