"""Where the memory of processes lies: Linux draws that anew for each that is started, unless it is told not to."""

import contextlib
import ctypes
from collections.abc import Iterator

_ASK, _ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000


@contextlib.contextmanager
def same_addresses() -> Iterator[None]:
    """What this thread starts inside, and all that it forks, has its memory at the same addresses in every run: the
    same scenario is to have the same verdict. Changes nothing where the system cannot do that, or forbids it.
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
