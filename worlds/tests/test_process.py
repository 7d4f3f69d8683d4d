"""Supervised children: what they answer, how they end, what they leave behind: nothing."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.worlds import process
from lockstep.worlds.process import Child, Died
from lockstep.worlds.tests import served
from lockstep.worlds.tests.outcomes import alive, gone

ROOT = Path(__file__).parents[3]
ASKS = """
    from lockstep.worlds import process
    from lockstep.worlds.tests import served

    if __name__ == "__main__":
        child = process.Child(served.obey)
        child.await_start()
        child.send("allocate")
        process.wait([child], 10.0)
        found, environment = child.receive()
        child.kill()
        print(environment["GLIBC_TUNABLES"], [values == {3.3961513649220713e38} for values in found])
"""


def start(serve: Callable[..., None], *arguments: object) -> Child:
    """A child that serves."""
    child = Child(serve, *arguments)
    child.await_start()
    return child


@pytest.fixture
def child() -> Iterator[Child]:
    started = start(served.obey)
    yield started
    started.kill()


def answer(child: Child) -> Any:
    """Its next answer, which must come within ten seconds."""
    assert process.wait([child], 10.0) == [child]
    return child.receive()


def test_a_child_is_given_arguments_and_answers_messages() -> None:
    child = start(served.echo, "hello")
    for message in (1, {"two": [3]}):
        child.send(message)
        word, back, pid = answer(child)
        assert (word, back) == ("hello", message)
        assert pid != os.getpid()
    child.kill()
    assert gone([pid])


def test_memory_that_nobody_has_written_is_always_the_same_and_shows(child: Child) -> None:
    """Floats near the largest; and the caller's environment is its own."""
    child.send("allocate")
    found, environment = answer(child)
    assert all(values == {3.3961513649220713e38} for values in found)
    for name in (process.FILL, process.TUNABLES):
        assert environment.get(name) == os.environ.get(name)
    assert process.FILL not in os.environ


def test_what_the_caller_has_told_glibc_is_still_told_to_what_a_child_starts(tmp_path: Path) -> None:
    """Behind which stands, for the child alone, what Lockstep tells it. TMPDIR is too long here for a socket's path."""
    (tmp_path / "asks.py").write_text(textwrap.dedent(ASKS))
    (tmp_path / ("x" * process.SOCKET_PATH)).mkdir()
    setting = {process.TUNABLES: "glibc.malloc.arena_max=3", "TMPDIR": str(tmp_path / ("x" * process.SOCKET_PATH))}
    environment = {**os.environ, **setting, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "asks.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stdout == "glibc.malloc.arena_max=3 [True, True, True]\n", ran.stderr


def test_a_fork_server_that_is_killed_takes_its_children_and_is_replaced(child: Child) -> None:
    os.kill(process._SERVERS[0]._forkserver_pid, signal.SIGKILL)
    with pytest.raises(Died, match="exited with code"):
        answer(child)
    another = start(served.echo, "hello")
    another.send(1)
    assert answer(another)[:2] == ("hello", 1)
    another.kill()


def test_memory_has_the_same_addresses_in_every_run_where_the_system_permits_that() -> None:
    """In every fork server, that is; and the supervisor's own stay random."""
    own, found = personality(), []
    for _ in range(2):
        if (server := process._SERVERS[0]._forkserver_pid) is not None:
            os.kill(server, signal.SIGKILL)
            assert gone([server])
        another = start(served.obey)
        another.send("addresses")
        found.append(answer(another))
        another.kill()
    permitted = subprocess.run(["setarch", "--addr-no-randomize", "true"], check=False).returncode == 0
    assert (found[0] == found[1]) == permitted
    assert personality() == own


def personality() -> int:
    """What Linux has been told of how to run this thread's programs."""
    told: int = ctypes.CDLL(None).personality(0xFFFFFFFF)
    return told


def test_an_answer_that_cannot_be_read_is_none(child: Child) -> None:
    child.send("answer what cannot be read")
    with pytest.raises(Died, match=r"gave an answer that cannot be read: TypeError: .*_exit"):
        answer(child)
    child.send("print")
    assert answer(child) == "printed"


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("exit", "exited with code 7"),
        ("raise", "exited with code 1"),
        ("kill", "was killed by SIGKILL"),
        ("return", "exited with code 0"),
    ],
)
def test_a_child_that_ends_instead_of_answering_is_told_how(child: Child, order: str, words: str) -> None:
    child.send(order)
    assert process.wait([child], 10.0) == [child]
    with pytest.raises(Died, match=words):
        child.receive()
    child.send("anybody there?")  # no error: the next receive says it again
    with pytest.raises(Died, match=words):
        child.receive()


def test_the_end_of_what_a_child_printed_is_kept_with_both_streams_and_what_went_past_python(child: Child) -> None:
    assert child.output() == ""
    child.send("print a little")
    assert answer(child) == "printed"
    assert child.output() == "on stdout\non stderr\npast Python\n"
    child.send("print")
    assert answer(child) == "printed"
    assert len(child.output()) == 4000
    assert child.output().endswith("xxxthe end\n")
    child.send("raise")
    assert process.wait([child], 10.0) == [child]
    assert "KeyError: 'nobody catches this'" in child.output()


def test_a_child_prints_nothing_on_our_streams(capfd: pytest.CaptureFixture[str]) -> None:
    child = start(served.obey)
    child.send("print")
    assert answer(child) == "printed"
    child.kill()
    assert capfd.readouterr() == ("", "")


def test_a_child_that_hangs_says_where(child: Child) -> None:
    child.send("hang")
    assert answer(child) == "hanging"
    begun = time.monotonic()
    assert process.wait([child], 0.2) == []
    assert 0.2 <= time.monotonic() - begun < 5
    for _ in range(2):
        stacks = child.stacks()
        assert stacks.count("in loop_for_ever") == 1
        assert "in obey" in stacks


def test_a_child_that_is_gone_has_no_stacks(child: Child) -> None:
    child.send("exit")
    assert process.wait([child], 10.0) == [child]
    with pytest.raises(Died):
        child.receive()
    assert child.stacks() == ""


def test_waiting_tells_who_is_ready() -> None:
    children = [start(served.obey) for _ in range(3)]
    children[1].send("print")
    assert process.wait(children, 10.0) == [children[1]]
    children[1].receive()
    assert process.wait(children, 0) == []
    assert process.wait(children, -1) == []
    for child in children:
        child.kill()


def test_killing_a_child_ends_what_it_started_too(child: Child) -> None:
    child.send("leave a process")
    pids = answer(child)
    assert all(alive(pid) for pid in pids)
    child.kill()
    assert gone(pids)


def test_ctrl_c_does_not_reach_a_child(child: Child) -> None:
    child.send("leave a process")
    pid, _ = answer(child)
    os.kill(pid, signal.SIGINT)
    child.send("print")
    assert answer(child) == "printed"


PARENT = """
    from lockstep.worlds.gloo import GlooWorld
    from lockstep.worlds.sim.world import SimWorld
    from lockstep.worlds.tests.outcomes import call, program, results, run_calls

    if __name__ == "__main__":
        sim, gloo = SimWorld(), GlooWorld()
        pids = {result["pid"] for world in (sim, gloo) for result in results(run_calls(world, [[call("barrier")]] * 2))}
        print(*pids, flush=True)
        THEN
"""


@pytest.mark.parametrize(
    ("then", "end"),
    [
        ("run_calls(gloo, [[call('loop_for_ever')]] * 2)", signal.SIGKILL),
        ("__import__('time').sleep(60)", signal.SIGKILL),
        ("raise SystemExit('without close')", None),
    ],
    ids=["killed while one world is idle and one runs", "killed while both are idle", "exits without close"],
)
def test_when_the_supervisor_goes_its_children_go(tmp_path: Path, then: str, end: signal.Signals | None) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT).replace("THEN", then))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    assert parent.stdout is not None
    helpers: list[int] = []
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3  # one process for all simulated ranks, one for each of gloo's
        helpers = descendants(parent.pid)
        if end is not None:  # else it ends by itself, perhaps before we look
            assert all(alive(pid) for pid in pids)
            parent.send_signal(end)
        parent.wait(20)
        assert gone([*pids, *helpers])  # the fork server and the resource tracker too
        assert not list(tmp_path.glob("lockstep-*"))
    finally:
        for left in (parent.pid, *helpers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


def descendants(pid: int) -> list[int]:
    """The processes under a process, by asking each process for its parent."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [pid]
    for ancestor in found:
        found.extend(child for child, parent in parents.items() if parent == ancestor)
    return found[1:]
