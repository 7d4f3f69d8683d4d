"""The threads of simulated ranks on one core of the machine.

Only one of them runs at a time. Passing the baton to a thread on another core takes several times as long: 17 to 19
microseconds against 5 to 7, measured with eight ranks on two virtual cores.
"""

import ctypes
import os
import threading
from collections.abc import Sequence


class Affinity:
    """The core that these threads run on."""

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        self._threads, self._current = threads, -1
        # On Linux; sched_getcpu(3).
        self._ask = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None

    def gather(self) -> None:
        """Moves them to the core of the thread that calls, which the system chose with an eye on who else is at work.

        Does nothing where the platform cannot tell or cannot move.
        """
        if self._ask is None or (core := self._ask()) == self._current:
            return
        try:
            for thread in self._threads:
                assert thread.native_id is not None  # it was started
                os.sched_setaffinity(thread.native_id, {core})
            self._current = core
        except OSError:  # not permitted
            self._ask = None
