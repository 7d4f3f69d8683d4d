"""A child process under supervision: a message in, a message out, a clock, a log of what it printed, and a sure end.

Children are forked from multiprocessing's fork server, which has imported torch once, so starting one takes
milliseconds. A child is the leader of a session of its own, so that what it leaves behind dies with it; it is killed by
the kernel when its fork server goes, and that goes when the supervisor does, however it ends.
"""

import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Examples after which a world replaces its processes: a hook that knows its wrapper, which knows the parameter, is a
# cycle through C++ that Python's collector cannot free, so most implementations leave some 25 kB behind each time.
LIFETIME = 2000
_PR_SET_PDEATHSIG = 1
_STACK_SIGNAL = signal.SIGUSR1
_READY = "ready"
_START_LIMIT = 120.0  # seconds for a child to begin, torch's import by the fork server included
_LOG_TAIL = 4000  # characters of a child's output that a report may carry


class Died(Exception):
    """The child ended instead of answering. The message says how: an exit code or a signal."""


def _fork_server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        # torch._dynamo: DDP's constructor imports it, which would take every rank a second or two.
        ["torch", "torch.distributed", "torch._dynamo", "torch.testing._internal.distributed.multi_threaded_pg"]
    )
    return context


def _begin(serve: Callable[..., None], connection: Connection, log: str, arguments: tuple[Any, ...]) -> None:
    """First thing in the child."""
    os.setsid()
    # Each child is handed what keeps the fork server alive; only the supervisor may have that.
    os.close(multiprocessing.forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False, errors="replace")
    stacks = os.open(log + ".stacks", os.O_WRONLY | os.O_CREAT)
    faulthandler.register(_STACK_SIGNAL, file=stacks, all_threads=True)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the supervisor has gone
        connection.send(_READY)
        serve(connection, *arguments)
    os._exit(0)  # an implementation's own threads must not keep the process


class Child:
    """One supervised process that runs ``serve(connection, *arguments)``."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-")
        self._log = str(Path(self._folder.name) / "log")
        self.connection, theirs = multiprocessing.Pipe()
        context = _fork_server()
        self._process = context.Process(target=_begin, args=(serve, theirs, self._log, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def await_start(self) -> None:
        """Returns once the child serves, so that no example pays for its start. Raises Died if it does not."""
        if not wait([self], _START_LIMIT):
            raise Died(f"did not start within {_START_LIMIT:g} s")
        self.receive()

    def send(self, message: Any) -> None:
        """Hands a message over; one to a child that has gone is seen by `receive`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> Any:
        """The child's answer, which must be there (see `wait`). Raises Died where the child ended instead."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(5)
            raise Died(_how_it_ended(self._process.exitcode)) from None

    def stacks(self) -> str:
        """Where every Python thread of the child is now, most recent call first; empty if it cannot answer."""
        written = Path(self._log + ".stacks")
        if self._process.pid is None or not self._process.is_alive() or not written.exists():
            return ""
        before = written.stat().st_size
        os.kill(self._process.pid, _STACK_SIGNAL)
        deadline, size = time.monotonic() + 2, before
        while time.monotonic() < deadline:  # until it has written something and then nothing more for a while
            time.sleep(0.1)
            size, earlier = written.stat().st_size, size
            if size == earlier > before:
                break
        return written.read_text(errors="replace")[before:]

    def output(self) -> str:
        """The end of what the child printed, on both streams."""
        path = Path(self._log)
        if not path.exists():
            return ""
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_TAIL))
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """Ends the child and everything in its session."""
        self.connection.close()
        pid = self._process.pid
        if pid is not None:
            for end in (os.killpg, os.kill):  # not yet a session of its own: the process alone
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(pid, signal.SIGKILL)
            self._process.join(10)
        self._folder.cleanup()


def wait(children: list[Child], seconds: float) -> list[Child]:
    """Those among the children that have answered or ended, waiting at most so long for the first."""
    ready = multiprocessing.connection.wait([child.connection for child in children], max(0.0, seconds))
    return [child for child in children if child.connection in ready]


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its connection and lives on"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
