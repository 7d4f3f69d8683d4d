"""Processes and what they have started, as Linux tells it in /proc."""

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path

from lockstep.worlds.progress import is_supervised


class Leftovers:
    """The threads and processes that a function leaves behind. Made before the function runs; see `list`."""

    def __init__(self) -> None:
        self._threads, self._nameless = len(threads := _threads()), _nameless(threads)
        # A process that nobody supervises has children of its own, which are its to wait for.
        self._before = None if is_supervised() else {*_own()}

    def list(self) -> tuple[str, ...]:
        """Threads and processes that have been started since and are still there, in words; cheap if there are none."""
        found: list[str] = []
        threads = _threads()
        if (more := len(threads) - self._threads) > 0:
            found += [f"a thread ({thread.name})" for thread in threads[-more:]]
        found += ["a thread (of _thread)"] * (_nameless(threads) - self._nameless)
        with contextlib.suppress(ChildProcessError):  # there is none
            while self._before is None and (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                del ended  # it ran to its end, and nobody had asked for its status
            new = (pid for pid in _own() if pid not in (self._before or ()))
            found += [f"a process ({name_of(pid)})" for pid in new if state_of(pid)[0] != "Z"]
        return tuple(found)


def _own() -> list[int]:
    """The descendants of this process. If it has none, one call of the system tells: /proc is read thread by thread."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
    return descendants(os.getpid())


def _threads() -> list[threading.Thread]:
    """The threads that Python code has started. A C++ thread that has run a hook is left alone."""
    return [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]


def _nameless(threads: list[threading.Thread]) -> int:
    """The number of threads that Python code has started without `threading`, beside these."""
    return _thread._count() - len(threads)


def end_if_forked(process: int, error: object) -> None:
    """Ends this process where a function that ``process`` was to run has forked it, and come back here in both."""
    if os.getpid() != process:
        os._exit(1 if error else 0)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, directly or not, and that still exist."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    found.extend(map(int, (task / "children").read_text().split()))
    return found[1:]


def name_of(pid: int) -> str:
    """The command line of the process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "that has ended since"


def state_of(pid: int) -> tuple[str, int]:
    """The process's state (T: stopped) and its resident bytes."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return "", 0


def queued(pid: int) -> float:
    """The seconds in which the process's threads were ready to run and did not; 0 where the kernel does not count."""
    nanoseconds = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                nanoseconds += int((task / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
