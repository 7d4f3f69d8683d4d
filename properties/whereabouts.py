"""Where in the implementation's code a rank was when it failed, from a traceback or the stacks of a hung process."""

import re
from pathlib import Path

from worlds.contract import Outcome

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
_OURS = tuple(str(Path(__file__).resolve().parent.parent / package) for package in ("worlds", "properties", "oracle"))
_NOT_THEIRS = ("site-packages", "dist-packages", "<frozen", "multiprocessing", "threading.py")


def whereabouts(outcome: Outcome) -> list[str]:
    """For each rank that failed in somebody's code the innermost line of it: "rank 1 at my_ddp.py:20, in finish"."""
    found: dict[str, list[int]] = {}
    for rank, report in enumerate(outcome):
        if report.error is not None:
            frames = [match.groupdict() for match in _FRAME.finditer(report.error.details)]
            if "most recent call first" not in report.error.details:
                frames.reverse()
            theirs = [frame for frame in frames if _theirs(frame["file"])]
            if theirs:
                place = f"{_short(theirs[0]['file'])}:{theirs[0]['line']}, in {theirs[0]['function']}"
                found.setdefault(place, []).append(rank)
    return [f"rank {', '.join(map(str, ranks))} at {place}" for place, ranks in found.items()]


def _theirs(file: str) -> bool:
    return not file.startswith(_OURS) and not any(part in file for part in (*_NOT_THEIRS, "/lib/python3"))


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
