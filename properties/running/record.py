"""A record of a run in a folder: the seed, and which examples of which law have passed.

A stopped run resumes from there. Portions whose sources have changed since are run again.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.properties.implementations import Unusable
from lockstep.properties.running.sources import fingerprint


class Record:
    """A file with one JSON object per line, to which every process of a run appends.

    The first line holds the data of the whole run. Each other line holds a portion of examples that a law has passed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "record.jsonl"
        self._done: dict[tuple[str, int], Any] = {}
        self._sources: dict[str, str] = {}
        self.seed: str | None = None
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            text = self._file.read_text("utf-8") if self._file.exists() else ""
        self._whole = text[: text.rfind("\n") + 1]  # if a run was killed, its last line may be incomplete
        for number, line in enumerate(self._whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                if number == 1:
                    self.seed = entry["seed"]
                else:
                    self._done[entry["of"], entry["portion"]] = entry
            except (ValueError, KeyError, TypeError):
                words = f"line {number} of {self._file.name} is no record of Lockstep's: {line[:60]!r}"
                raise Unusable(f"--record {folder}: {words}; name a folder of its own for each run") from None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors in reading or writing the file into Unusable with a message of one line."""
        try:
            yield
        except OSError as error:
            words = f"{error.strerror}: {error.filename}; name a folder to write to"
            raise Unusable(f"--record {self.folder}: {words}") from None
        except UnicodeDecodeError as error:
            words = f"byte {error.start} of {self._file.name} is {error.object[error.start]:#04x}, which is no UTF-8"
            raise Unusable(f"--record {self.folder}: {words}; name a folder of its own for each run") from None

    def begin(self, seed: str | None) -> None:
        """Begin the record, or continue it. Must be called before any process appends.

        Raises Unusable if the record has another seed.
        """
        if self._whole and seed != self.seed:
            raise Unusable(f"--record {self.folder}: its run has the seed {self.seed}, not {seed}")
        with self._told():
            self._file.write_text(self._whole)
        if not self._whole:
            self.seed = seed
            self._append({"seed": seed})

    def sources(self, name: str) -> str:
        """The fingerprint of an implementation at the first call, that is, before the implementation is imported."""
        if name not in self._sources:
            self._sources[name] = fingerprint(name)
        return self._sources[name]

    def done(self, of: str, portion: int, name: str) -> Mapping[str, Any]:
        """The record of a portion that has passed.

        Empty if the portion has not passed, or if it passed with other sources of the named implementation.
        """
        kept: Mapping[str, Any] = self._done.get((of, portion), {})
        return kept if kept.get("sources") == self.sources(name) else {}

    def keep(self, of: str, portion: int, name: str, what: Mapping[str, Any]) -> None:
        """Record that a portion has passed, unless the sources have changed since the run began."""
        if fingerprint(name) == self.sources(name):
            self._append({"of": of, "portion": portion, "sources": self.sources(name), **what})

    def keep_summary(self, lines: Sequence[str], filed: Sequence[Mapping[str, Any]]) -> None:
        """Write the summary of the run, for people and as data."""
        (self.folder / "summary.txt").write_text("\n".join(lines) + "\n")
        (self.folder / "summary.json").write_text(json.dumps({"seed": self.seed, "verdicts": filed}, indent=1) + "\n")

    def _append(self, entry: Mapping[str, Any]) -> None:
        # One write appends one short line, so that lines of several processes do not mix.
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")
