"""The result files of one run: read known failures at its beginning, and write results at its end."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.properties.implementations import Unusable
from lockstep.properties.reports.failure import FOLDER
from lockstep.properties.reports.matrix import filed_by
from lockstep.properties.results import known, settled
from lockstep.properties.results.annotations import annotations, are_read
from lockstep.properties.results.document import Document, targets, write
from lockstep.properties.results.known import Known

STORED = "results.json"  # in the folder of a report


class Results:
    """The files named by the options `--json`, `--known` and `--write-known`.

    If a run against a user's code finds a defect, it also writes `STORED` into the folder of its report. `lockstep
    check --explain` reads that file. Raises Unusable with a message of one line for files that cannot be read or
    written.
    """

    def __init__(self, option: Callable[[str], str | None]) -> None:
        self._began, self._seconds = datetime.now(UTC), time.monotonic()
        self._file, self._json, self._new = (
            Path(name) if (name := option(each)) else None for each in ("--known", "--json", "--write-known")
        )
        for asked, path in (("--json", self._json), ("--write-known", self._new)):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise Unusable(f"{asked} {path}: name a file in an existing folder")
        # Workers of pytest-xdist have these options too; only the process with the terminal calls `keep`.
        self._stored = Path(option("--report") or FOLDER) / STORED if option("--impl") else None
        self.entries = known.read(self._file)
        self.mended: list[Known] = []

    def settle(self, report: Any) -> None:
        """Turn a failed test into pytest's expected failure if all its failures are known."""
        filed = filed_by(report)
        if report.failed and isinstance(filed, dict) and (reason := settled.settle(filed, self.entries)):
            report.outcome, report.wasxfail = "skipped", reason

    def look_for_mended(self, rows: Sequence[Mapping[str, Any]], complete: bool) -> bool:
        """Find the known failures that no longer fail; true if there are any. ``complete``: every law was checked."""
        self.mended = settled.mended(rows, self.entries, complete)
        return bool(self.mended)

    def told(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The lines on known and mended failures for the end of the run."""
        return settled.told(rows, self.mended)

    def keep(self, rows: Sequence[Mapping[str, Any]], **about: Any) -> None:
        """Write the files that were asked for. ``about``: the fields of a `Document` that are not computed here."""
        if self._new is not None:
            still = [each for each in self.entries if each not in self.mended]
            self._new.write_text(known.written([*still, *known.new_ones(rows)]), "utf-8")
        if self._stored is None and self._json is None and not are_read():
            return
        seconds = round(time.monotonic() - self._seconds, 1)
        mended, started = tuple(map(str, self.mended)), self._began.isoformat(timespec="seconds")
        document = Document(targets=targets(rows), mended=mended, started=started, seconds=seconds, **about)
        if self._json is not None:
            write(document, self._json)
        if self._stored is not None and any(target.defects for target in document.targets):
            with contextlib.suppress(OSError):  # the run has already reported a folder that cannot be written
                write(document, self._stored)
        if are_read():
            print("\n".join(annotations(document)), file=sys.stdout, flush=True)
