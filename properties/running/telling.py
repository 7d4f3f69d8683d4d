"""Progress of a run: each new defect at once, and now and then the number of laws that have ended."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.properties.defects.ledger import Ledger

EVERY = 10.0  # seconds between two lines on progress
LOOKED_FOR = 0.25  # seconds between two looks at the notes of other processes


class Teller:
    """``say`` gets lines, from one thread at a time. ``laws``: the number of laws in the run; None if not known yet."""

    def __init__(self, ledger: Ledger, say: Callable[[str], None]) -> None:
        self.ledger = ledger
        self.laws: int | None = None
        self._say, self._lock, self._told = say, threading.Lock(), set[tuple[str, str]]()
        self._ended = self._examples = 0
        self._since = self._last = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Report by itself the defects that other processes find, until `close`."""

        def look() -> None:
            while not self._over.wait(LOOKED_FOR):
                self.look()
                self._tell_how_far()

        self._thread = threading.Thread(target=look, name="lockstep tells", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Report the defects that have not been reported."""
        with self._lock:
            for defect in self.ledger.defects():
                if (key := (defect.implementation, defect.id)) not in self._told:
                    self._told.add(key)
                    self._say(f"\n{defect.id}, after {time.monotonic() - self._since:.0f} s:\n")
                    for face in defect.faces:
                        self._say(f"{face['report']}\n")

    def ended(self, filed: Mapping[str, Any] | None) -> None:
        """Note that a law has ended. ``filed``: the data that it filed, if any."""
        self.look()
        with self._lock:
            self._ended += 1
            self._examples += 0 if filed is None else filed.get("examples", 0)
        self._tell_how_far()

    def _tell_how_far(self) -> None:
        with self._lock:
            if (now := time.monotonic()) - self._last >= EVERY:
                self._last = now
                self._say(self._far())

    def _far(self) -> str:
        if not self._ended:
            waits = "processes import torch and your code, or the first laws run"
            return f"no law has ended yet ({waits}), {time.monotonic() - self._since:.0f} s"
        laws = (
            f"{self._ended} law{'s' * (self._ended > 1)}" if self.laws is None else f"{self._ended} of {self.laws} laws"
        )
        defects = f"{len(self._told)} defect{'s' * (len(self._told) != 1)}"
        return f"{laws}, {self._examples:,} examples, {defects}, {time.monotonic() - self._since:.0f} s"

    def close(self) -> None:
        """Report the remaining defects, and stop."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.look()
