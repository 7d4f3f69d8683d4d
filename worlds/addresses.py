"""The addresses of a process's memory: Linux draws them anew for each process, unless it is told not to."""

import contextlib
import ctypes
from collections.abc import Iterator

_ASK, _ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000


@contextlib.contextmanager
def same_addresses() -> Iterator[None]:
    """Give each process that this thread starts inside, and its forks, the same memory addresses in every run.

    With them, the same scenario has the same verdict. Where the system cannot do that, or forbids it, nothing changes.
    """
    personality = getattr(ctypes.CDLL(None), "personality", lambda _: -1)  # personality(2), of Linux
    before = personality(_ASK)
    if before >= 0:
        personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before >= 0:
            personality(before)
