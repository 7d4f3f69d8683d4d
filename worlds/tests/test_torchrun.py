"""The torchrun world, on real jobs of this machine: rank 0 drives, and a job that has lost a rank ends and says so."""

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path

import pytest

from lockstep.worlds import torchrun as torchrun_world
from lockstep.worlds.tests.outcomes import gone
from lockstep.worlds.tests.users import marked

ROOT = Path(__file__).parents[3]
LAW = ["pytest", "-c", str(ROOT / "pyproject.toml"), str(ROOT / "properties/test_mean.py"), "--world", "torchrun"]
LAW += ["-k", "gradients_equal_the_mean", "--hypothesis-profile", "dev"]
SLEEPS = """
    import time
    from pathlib import Path

    import torch.distributed as dist

    def implementation(module):
        if dist.get_world_size() > 1:
            Path(__file__).with_name("begun").touch()
            time.sleep(1000)
        return module
"""
SLOW = """
    import time
    from lockstep.impls.naive import NaiveDataParallel

    def implementation(module):
        time.sleep(0.5)
        return NaiveDataParallel(module)
"""


@contextlib.contextmanager
def torchrun(folder: Path, implementation: str) -> Iterator[subprocess.Popen[str]]:
    """A job of two ranks that holds a law against an implementation. Leaves no process of it behind."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", *LAW]
    command += ["--impl", implementation]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "LOCKSTEP_TEST": str(folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        try:
            yield job
        finally:
            for pid in [*marked(f"LOCKSTEP_TEST={folder}"), job.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_laws_hold_on_the_ranks_of_a_job_which_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW))
    with torchrun(tmp_path, "slow.py:implementation") as job:
        output, _ = job.communicate(timeout=240)
        assert job.returncode == 0, output
        assert "gradients equal the mean over ranks" in output
        assert "holds on torchrun" in output
        assert gone(marked(f"LOCKSTEP_TEST={tmp_path}"))


def two_hosts_missing() -> str:
    """Why this machine cannot play two hosts; empty if it can."""
    tool = shutil.which("ip")
    if os.geteuid() or tool is None:
        return "two hosts are played by network namespaces, which take root and `ip`"
    name = f"lockstep-try-{os.getpid()}"
    made = subprocess.run([tool, "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        subprocess.run([tool, "netns", "del", name], check=True)
        return ""
    return f"no network namespace can be made here: {made.stderr.strip()}"


def on_two_hosts(folder: Path, starter: str, *job: str) -> subprocess.CompletedProcess[str]:
    """A job of one rank on each, begun by a shell command with torchrun's arguments; skips the test where this machine
    cannot play them."""
    if missing := two_hosts_missing():
        pytest.skip(missing)
    (folder / "torchrun").write_text(f"#!/bin/sh\n{starter}\n")
    (folder / "torchrun").chmod(0o755)
    own = {"TORCHRUN": str(folder / "torchrun"), "LIMIT": "240", "PYTHONPATH": str(ROOT)}
    command = ["bash", str(ROOT / "worlds/tests/two_hosts.sh"), *job]
    environment = {**os.environ, **own}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_laws_hold_on_two_hosts(tmp_path: Path) -> None:
    law = [*LAW, "--impl", "lockstep.impls.naive:NaiveDataParallel"]
    run = on_two_hosts(tmp_path, f'exec {sys.executable} -m torch.distributed.run "$@"', *law)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "holds on torchrun" in run.stdout


@pytest.mark.parametrize("host", [0, 1])
def test_a_job_that_fails_on_either_host_fails(tmp_path: Path, host: int) -> None:
    run = on_two_hosts(tmp_path, f'case "$*" in *--node-rank={host}*) exit 3;; esac', "any.program")
    assert run.returncode == 3, run.stderr


def test_a_job_that_has_lost_a_rank_ends_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text(textwrap.dedent(SLEEPS))
    with torchrun(tmp_path, "sleeps.py:implementation") as job:
        deadline = time.monotonic() + 120
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.02)
        assert (tmp_path / "begun").exists()
        (agent,) = [pid for pid in marked(f"LOCKSTEP_TEST={tmp_path}") if is_agent(pid)]
        os.kill(agent, signal.SIGKILL)
        output, _ = job.communicate(timeout=120)
        assert job.returncode != 0
        # Whoever sees it first says so: rank 0, or torchrun, which ends rank 0 and names the rank in its own report.
        ours = "rank 1 on " in output and "has gone, so this torchrun job ends here" in output
        torchruns = "torchrun ended this job: another of its processes has gone" in output and "SIGKILL" in output
        assert ours or torchruns, output
        assert gone(marked(f"LOCKSTEP_TEST={tmp_path}"))


def is_agent(pid: int) -> bool:
    """True if the process is the one that torchrun started as rank 1, and none that it started in turn."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        above = Path(f"/proc/{parent}/cmdline").read_bytes()
        return b"RANK=1" in environment and b"torch.distributed.run" in above
    return False


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR"])
def test_without_a_job_one_line_says_how_to_start_one(missing: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != missing}
    command = [sys.executable, "-m", "pytest", "properties/test_mean.py", "--world", "torchrun"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
    assert "start pytest with torchrun" in line
    assert missing in line


class Store:
    """In place of torchrun's: ``looks`` of an agent find nothing; then a key is there, or ``gone``."""

    def __init__(self, looks: int = 0, gone: bool = False) -> None:
        self.told: queue.Queue[str] = queue.Queue()
        self._looks, self._gone = looks, gone

    def set(self, key: str, value: str) -> None:
        self.told.put(value)

    def check(self, keys: list[str]) -> bool:
        self._looks -= 1
        if self._gone and self._looks < 0:
            raise RuntimeError("Failed to recv, got 0 bytes.")
        return self._looks < 0

    def get(self, key: str) -> bytes:
        return b""


@pytest.mark.parametrize(("gone_before", "status"), [(False, 0), (True, 1)])
def test_an_agent_waits_as_long_as_the_store_answers(
    monkeypatch: pytest.MonkeyPatch, gone_before: bool, status: int
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(torchrun_world, "_LOOK", 0.0)
    monkeypatch.setattr(torchrun_world, "_join", lambda: Store(1000, gone_before))
    assert torchrun_world.be_an_agent() == status


def test_whoever_connects_without_the_key_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor whoever says nothing, or stops in the middle of a message, and stays; an agent may then take its time."""
    store = Store()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torchrun_world, "_join", lambda: store)
    monkeypatch.setattr(torchrun_world, "_GREETING", 1)
    silent: list[socket.socket] = []

    def strangers_and_an_agent() -> None:
        port, _, key = store.told.get().partition(":")
        address = ("127.0.0.1", int(port))
        with socket.create_connection(address) as browser:
            browser.sendall(b"GET / HTTP/1.0\r\n\r\n")
        socket.create_connection(address).close()
        silent.extend(socket.create_connection(address) for _ in range(2))
        silent[1].sendall(b"\0")
        with contextlib.suppress(AuthenticationError, OSError, EOFError):
            Client(address, authkey=b"another key").close()
        lines.append(Client(address, authkey=bytes.fromhex(key)))
        lines[0].send((1, "elsewhere"))

    def leave() -> None:
        for stranger in silent:
            stranger.close()

    lines: list[Connection] = []
    others = threading.Thread(target=strangers_and_an_agent, daemon=True)
    others.start()
    at_last = threading.Timer(60, leave)
    at_last.start()
    world = torchrun_world.TorchrunWorld()
    assert at_last.is_alive(), "it has waited for them until they left"
    at_last.cancel()
    time.sleep(1.5)
    lines[0].send(("answer", 3))
    assert world._agents[1].ranks_answers.recv() == ("answer", 3)
    world.end()
    assert lines[0].recv() == ("end",)
    leave()
    lines[0].close()
