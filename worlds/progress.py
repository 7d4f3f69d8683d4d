"""The progress that a child reports to its supervisor, whatever happens to it, and the time that is charged to no
example.

Both are in a file beside the child's log, which is mapped into its memory: the child writes, and the supervisor reads
while it waits.
"""

import contextlib
import importlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.worlds.blame import IMPORTING, Progress

# The seconds off the clock up to now, but for those since a moment, if that is not 0; behind them the number of
# collectives launched, and the last ones, each at the place of its number modulo `RECENT`.
_OFF_THE_CLOCK = struct.Struct("dd")
_COUNT = struct.Struct("q")
_CALL = struct.Struct("q120s120s")
RECENT = 16
_CALLS = _OFF_THE_CLOCK.size + _COUNT.size
_SIZE = _CALLS + RECENT * _CALL.size

_notes: mmap.mmap | None = None


def begin(log: str) -> None:
    """In a child with this log: notes from now on, of itself what it imports."""
    global _notes
    with _file(log).open("w+b") as file:
        file.truncate(_SIZE)
        _notes = mmap.mmap(file.fileno(), _SIZE)
    _take_imports_off_the_clock()
    os.register_at_fork(after_in_child=_end)


def _end() -> None:
    """In what a child has forked: it shares that memory, and is not the one that is waited for."""
    global _notes
    _notes = None
    _pause.__init__()  # type: ignore[misc]


def is_supervised() -> bool:
    """True if this process is a child under supervision."""
    return _notes is not None


def note_progress(count: int, group: str = "", place: int = 0, call: str = "") -> None:
    """In a child: how far it is, see `worlds.blame.Progress`."""
    if _notes is not None:
        if count:
            _CALL.pack_into(_notes, _CALLS + count % RECENT * _CALL.size, place, group.encode(), call.encode())
        _COUNT.pack_into(_notes, _OFF_THE_CLOCK.size, count)


class _Pause:
    """In a child: the time that no example pays for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # several threads may import, and a signal's handler
        self._depth, self._seconds, self._since = 0, 0.0, 0.0

    def begin(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._note(time.monotonic())

    def end(self) -> None:
        with self._lock:
            self._depth = max(0, self._depth - 1)  # in what was forked meanwhile it is 0
            if self._depth == 0 and self._since:
                self._seconds += time.monotonic() - self._since
                self._note(0.0)

    def _note(self, since: float) -> None:
        self._since = since
        if _notes is not None:
            _OFF_THE_CLOCK.pack_into(_notes, 0, self._seconds, since)


_pause = _Pause()


@contextlib.contextmanager
def off_the_clock() -> Iterator[None]:
    """In a child: what is imported inside takes none of the example's time (see `worlds.process.Clock`)."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()


def _take_imports_off_the_clock() -> None:
    """Also those that an implementation makes when it is first called: each process imports a module but once."""
    find_and_load = importlib._bootstrap._find_and_load  # type: ignore[attr-defined]

    def timed(name: str, import_: Any) -> Any:
        _pause.begin()
        try:
            return find_and_load(name, import_)
        finally:
            _pause.end()

    importlib._bootstrap._find_and_load = timed  # type: ignore[attr-defined]


def progress(log: str) -> Progress:
    """The progress that the child of this log has noted with `note_progress`."""
    if not (noted := _noted(log)):
        return Progress()
    (count,), (_, since) = _COUNT.unpack_from(noted, _OFF_THE_CLOCK.size), _OFF_THE_CLOCK.unpack_from(noted)
    first = max(1, count - RECENT + 2)  # the one before it may be making way for the next
    calls = tuple(_call(noted, number) for number in range(first, count + 1))
    return Progress(IMPORTING if since and not count else count, calls)


def seconds_off_the_clock(log: str) -> float:
    """The seconds that the child of this log has been `off_the_clock`, up to now."""
    seconds, since = _OFF_THE_CLOCK.unpack_from(noted) if (noted := _noted(log)) else (0.0, 0.0)
    return float(seconds + (time.monotonic() - since if since else 0.0))


def _call(noted: bytes, number: int) -> tuple[str, int, str]:
    """Group, place in it, and words of the collective of this number."""
    place, *texts = _CALL.unpack_from(noted, _CALLS + number % RECENT * _CALL.size)
    group, call = (text.rstrip(b"\0").decode(errors="replace") for text in texts)
    return group, place, call


def _noted(log: str) -> bytes:
    """All that is noted; nothing before the child has begun."""
    noted = _file(log).read_bytes() if _file(log).exists() else b""
    return noted if len(noted) == _SIZE else b""


def _file(log: str) -> Path:
    return Path(log + ".progress")
