"""Run `lockstep check --json` for each row of the conformance report.

A row is not run again if its file has the same versions, seed, world and number of programs. So a report can be made in
parts.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import lockstep
from lockstep.home import HOME, IS_CLONE
from lockstep.properties.conformance.rows import Row
from lockstep.properties.implementations import Unusable
from lockstep.properties.results.document import Defect, Document, read, write

FOLDER = Path(HOME) / "docs" / "conformance" if IS_CLONE else Path("conformance")
KNOWN = "known.toml"  # the failures that are findings, in the folder of a report
TOLD = ("torch", "numpy", "hypothesis")
LIMIT = 1200  # seconds; the time limit of a row


def place_of(row: Row, folder: Path) -> Path:
    """The results file of a row."""
    return folder / "results" / f"{row.framework}-{row.name}.json"


def programs(examples: int) -> str:
    """The ``profile`` that a document of a run with so many examples has."""
    return f"{examples} programs for each law"


def is_there(row: Row, folder: Path, examples: int, seed: int) -> bool:
    """True if the file of a row holds a complete run with these options."""
    try:
        found = read(place_of(row, folder))
    except Unusable:
        return False
    asked = (programs(examples), str(seed), (row.world,), lockstep.__version__, _versions(row), False)
    return asked == (found.profile, found.seed, found.worlds, found.lockstep, dict(found.versions), found.stopped)


def hold(row: Row, folder: Path, examples: int, seed: int) -> Document | None:
    """Check a row against the laws, and write its file. None if the run ended without verdicts, or after `LIMIT`."""
    place = place_of(row, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    options = {"--world": row.world, "--examples": examples, "--seed": seed, "-n": 0, "--json": place}
    options |= {"--report": folder / "reports"}
    options |= {"--known": folder / KNOWN} if (folder / KNOWN).is_file() else {}
    told = [part for name, value in options.items() for part in (name, str(value))]
    command = [sys.executable, "-m", "lockstep", "check", row.target, *told]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (HOME, os.environ.get("PYTHONPATH"))))}
    log = folder / "reports" / f"{row.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as running:
        try:
            running.wait(LIMIT)
        except BaseException as ended:  # as after Ctrl-C, the verdicts so far are kept
            running.terminate()
            if not isinstance(ended, subprocess.TimeoutExpired):
                raise
    try:
        found = read(place)
    except Unusable:
        return None
    targets = tuple(replace(target, defects=tuple(map(_filed, target.defects))) for target in found.targets)
    found = replace(found, targets=targets, profile=programs(examples), versions=_versions(row))
    write(found, place)
    return found


def hold_all(rows: Sequence[Row], folder: Path, examples: int, seed: int, say: Callable[[str], None]) -> None:
    """Check each row that has no results yet, one after the other, and report each in a line."""
    for number, row in enumerate(rows, 1):
        where = f"{number} of {len(rows)}: {row.framework} {row.name}"
        if row.versions is None:
            say(f"{where}: skipped; {row.framework} is not installed")
        elif is_there(row, folder, examples, seed):
            say(f"{where}: there already")
        else:
            found = hold(row, folder, examples, seed)
            say(f"{where}: {'no verdict' if found is None else f'{found.seconds:.0f} s'}")


def _filed(defect: Defect) -> Defect:
    """A defect without its script, which is written again by running the row."""
    where = tuple(map(_without_folders, defect.diagnosis.where))
    return replace(defect, script="", report=portable(defect.report), diagnosis=replace(defect.diagnosis, where=where))


def portable(report: str) -> str:
    """A report without the command of its script, which is not kept, and without folders of this machine."""
    return _without_folders(re.sub(r"^See it:.*\n(?: {11}.*\n)*", "", report, flags=re.MULTILINE))


def _without_folders(text: str) -> str:
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), HOME):
        text = text.replace(f"{folder}{os.sep}", "")
    return text


def _versions(row: Row) -> dict[str, str]:
    return {name: version(name) for name in TOLD} | dict(row.versions or {})
