"""The defects of a run, shared by all of its processes, and the order in which laws may file them.

Each law has a place; the plainest law is the first. A law may file a defect only after all laws before it have ended.
So the defects and their order do not depend on the number of processes.
"""

import time
import zlib
from collections.abc import Callable
from pathlib import Path

from lockstep.properties.defects.defect import Defect

PATIENCE = 120.0  # seconds; if no law ends for so long, waiting ends, as a process may have died
PAUSE = 0.02


class Ledger:
    """The defects filed so far.

    ``folder``: the folder in which the processes of the run leave notes for one another; None for one process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._defects: dict[tuple[str, str], Defect] = {}

    def defects(self, implementation: str | None = None) -> tuple[Defect, ...]:
        """The defects filed so far of an implementation, or of all, in order."""
        if self.folder is not None:
            for file in self.folder.glob("*-D*.json"):
                found = Defect.from_json(file.read_text())
                self._defects[found.implementation, found.id] = found
        mine = (each for each in self._defects.values() if implementation in (None, each.implementation))
        return tuple(sorted(mine, key=lambda each: (each.implementation, int(each.id[1:]))))

    def file(self, defect: Defect) -> None:
        """File a defect, or a changed version of one."""
        self._defects[defect.implementation, defect.id] = defect
        if self.folder is not None:
            whose = zlib.crc32(defect.implementation.encode())
            _write(self.folder / f"{whose:08x}-{defect.id}.json", defect.to_json())

    def next_id(self, implementation: str) -> str:
        """The name of the next defect of an implementation."""
        return f"D{len(self.defects(implementation)) + 1}"

    def wait_to_begin(self, place: int) -> None:
        """Wait until no earlier law is about to file a defect."""
        if self.folder is not None:
            self._wait(lambda: not any(each < place for each in self._noted("judging") - self._noted("done")))

    def wait_to_judge(self, place: int) -> None:
        """Wait until all earlier laws have ended. Later laws do not begin before this one has ended."""
        if self.folder is not None:
            (self.folder / f"{place}.judging").touch()
            self._wait(lambda: self._noted("done") >= {*range(place)})

    def done(self, place: int) -> None:
        """Note that a law has ended."""
        if self.folder is not None:
            (self.folder / f"{place}.done").touch()

    def _noted(self, what: str) -> set[int]:
        assert self.folder is not None
        return {int(file.stem) for file in self.folder.glob(f"*.{what}")}

    def _wait(self, over: Callable[[], bool]) -> None:
        ended, since = -1, time.monotonic()
        while not over():
            if (now := len(self._noted("done"))) != ended:
                ended, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                return
            time.sleep(PAUSE)


def _write(path: Path, text: str) -> None:
    """Write the file in one step, so that no reader sees a part of it."""
    aside = path.with_suffix(".part")
    aside.write_text(text)
    aside.replace(path)
