"""Whatever one rank does, the world says what it was, the next example runs on a sound pool, and no process is left."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from lockstep.worlds import pool, process
from lockstep.worlds.contract import Job, Outcome, World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.faults import FAULTS, complaints, with_a_fault
from lockstep.worlds.tests.outcomes import gone, kinds, messages, results
from lockstep.worlds.tests.users import marked

LIMIT = 1.5
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def quick(gloo: World) -> Iterator[GlooWorld]:
    """A gloo world that is soon at its limits."""
    world = GlooWorld(limit=30.0, memory=1 << 30)
    yield world
    world.close()


def run(world: World, fault: str | None = None, culprit: int = 0, size: int = 3) -> Outcome:
    """With little patience where ranks end, or wait, because of the fault: nothing else is to depend on the clock."""
    payload = json.dumps({"fault": fault, "rank": culprit} if fault else None)
    kind = None if fault is None else FAULTS[fault].kind
    job = Job(f"{with_a_fault.__module__}:with_a_fault", payload, size, limit=LIMIT if kind == "timeout" else None)
    with mock.patch.object(pool, "PATIENCE", pool.PATIENCE if kind is None else 0.5):
        return world.run(job)


def pids(outcome: Outcome) -> set[int]:
    return {int(result["pid"]) for result in results(outcome)}


@pytest.mark.parametrize("culprit", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_rank_is_told_as_what_it_is_and_the_next_example_is_sound(
    quick: GlooWorld, fault: str, culprit: int
) -> None:
    before = pids(run(quick))
    assert complaints(run(quick, fault, culprit), fault, culprit) == []
    after = run(quick)
    assert complaints(after, None, 0) == []
    if FAULTS[fault].kind is None and not FAULTS[fault].left:
        assert pids(after) == before  # no harm was done
    else:
        assert not pids(after) & before
        assert gone(before)


ON_SIM = {  # one process runs all simulated ranks: what ends it, ends all
    "raises": ("raised", "RuntimeError: had enough"),
    "calls sys.exit": ("raised", "SystemExit: 3"),
    "calls os._exit": ("died", "exited with code 3"),
    "is killed": ("died", "was killed by SIGKILL"),
    "segfaults": ("died", "was killed by SIGSEGV, as where memory is used that was freed"),
    "is stopped": ("died", "was stopped by a signal (SIGSTOP)"),
    "hangs in Python": ("timeout", "no answer within 1.5 s"),
    "hangs in C with the GIL": ("timeout", "no answer within 1.5 s"),
    "hangs in a collective": ("deadlock", "rank 1 waits for all_reduce"),
    "disagrees": ("mismatch", "rank 1 calls all_reduce(sum, 3 x float32)"),
    "allocates without bound": ("died", "of memory and was ended; 1 GiB are allowed"),
    "prints megabytes": (None, ""),
    "leaves a group": (None, ""),
}


@pytest.mark.parametrize("fault", ON_SIM)
def test_the_process_of_the_simulated_ranks_is_contained_like_any_other(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("lockstep.worlds.process.MEMORY", 1 << 30)
    world = SimWorld()
    try:
        before = pids(run(world))
        outcome = run(world, fault, 1)
        kind, says = ON_SIM[fault]
        assert kinds(outcome)[1] == kind
        assert says in messages(outcome)[1]
        after = run(world)
        assert complaints(after, None, 0) == []
        if kind in ("died", "timeout"):
            assert gone(before)
    finally:
        world.close()


@pytest.mark.parametrize("fault", ["leaves a thread", "leaves a process"])
def test_what_a_simulated_rank_leaves_behind_is_told_and_ended(sim: World, fault: str) -> None:
    before = pids(run(sim))
    left = FAULTS[fault].left
    assert left is not None
    assert [bool(re.search(left, " ".join(report.left))) for report in run(sim, fault, 1)] == [True, False, False]
    assert not pids(run(sim)) & before
    assert gone(before)


def test_what_a_rank_prints_is_kept_to_its_end_and_no_file_grows_without_bound(quick: GlooWorld) -> None:
    for _ in range(3):
        assert complaints(run(quick, "prints megabytes", 1), "prints megabytes", 1) == []
        run(quick)
    (child,) = quick._pool[1:2]
    child._watched = 0.0
    child.watch()
    assert child.output().endswith("the end\n")
    assert Path(child._log).stat().st_size <= process.LOG_LIMIT


HANGS = """
    import subprocess, time
    from pathlib import Path

    import torch.distributed as dist

    def implementation(module):
        subprocess.run("setsid sleep 1000 &", shell=True, check=True)
        if dist.get_rank() == 1:
            Path(__file__).with_name("begun").touch()
            while True:
                time.sleep(0.01)
        dist.barrier()
        return module
"""


@pytest.mark.parametrize(
    ("end", "world"),
    [(signal.SIGINT, "gloo"), (signal.SIGKILL, "gloo"), (signal.SIGTERM, "sim")],
    ids=str,
)
def test_when_pytest_is_interrupted_or_killed_in_the_middle_of_an_example_nothing_is_left(
    tmp_path: Path, end: signal.Signals, world: str
) -> None:
    """Not even a daemon that a rank has started, or a folder."""
    (tmp_path / "hangs.py").write_text(textwrap.dedent(HANGS))
    setting = {"LOCKSTEP_TEST": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(ROOT / "properties/test_mean.py"),
    ]
    with subprocess.Popen(
        [*command, "--world", world, "--impl", "hangs.py:implementation"],
        cwd=tmp_path,
        env={**os.environ, **setting, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs this in the background may have had Ctrl-C ignored, which processes inherit.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as pytest_itself:
        try:
            deadline = time.monotonic() + 180
            while not (tmp_path / "begun").exists() and time.monotonic() < deadline and pytest_itself.poll() is None:
                time.sleep(0.02)
            assert (tmp_path / "begun").exists()
            pytest_itself.send_signal(end)
            if end is signal.SIGTERM:
                time.sleep(0.2)
                pytest_itself.send_signal(end)  # as `timeout` does
            output, _ = pytest_itself.communicate(timeout=20)
            assert gone(marked(f"LOCKSTEP_TEST={tmp_path}"))
            assert {path.name for path in tmp_path.glob("lockstep-*")} <= {"lockstep-report"}
        finally:
            for pid in [*marked(f"LOCKSTEP_TEST={tmp_path}"), pytest_itself.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    if end is not signal.SIGKILL:
        assert pytest_itself.returncode == pytest.ExitCode.INTERRUPTED
        assert "KeyboardInterrupt" in output
    else:
        assert pytest_itself.returncode == -end


def test_500_examples_with_a_fault_in_one_of_50_leave_nothing_untold_and_nothing_behind() -> None:
    """10,000 run nightly. In a process of its own, so that every process that comes of it bears its mark."""
    command = [sys.executable, "-m", "lockstep.worlds.tests.inject", "--examples", "500"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "500 examples on gloo, 10 with a fault" in run.stdout
