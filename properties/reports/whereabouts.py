"""The place in the implementation's code where a rank failed, from a traceback or the stacks of a hung process."""

import re
from pathlib import Path
from sysconfig import get_path

from lockstep.home import PACKAGE
from lockstep.worlds.contract import Outcome, to_blame

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
_OURS = tuple(PACKAGE / package for package in ("worlds", "properties", "oracle"))
_PYTHON = Path(get_path("stdlib"))
_THREAD = re.compile(r"^(?:Current thread|Thread) ", re.MULTILINE)
_INSTALLED = ("site-packages", "dist-packages")
# Installed packages that run the user's code. Any other installed package may be under test.
_RUNNERS = ("torch", "numpy", "hypothesis", "pytest", "_pytest", "pluggy", "xdist", "execnet")


def whereabouts(outcome: Outcome) -> list[str]:
    """For each rank that failed, the innermost line of the implementation: "rank 1 at my_ddp.py:20, in finish".

    For a hung rank also the line that was called from there: "(then torch/utils/file_baton.py:49, in wait)". Ranks that
    only waited for a failed one are left out.
    """
    found: dict[str, list[int]] = {}
    for rank, error in to_blame(outcome).items():
        frames = [match.groupdict() for match in _FRAME.finditer(error.details)]
        if "most recent call first" not in error.details:
            frames.reverse()
        # A line of an installed package is used only if there is none of the user's own files.
        theirs = [frame for frame in frames if _theirs(frame["file"])]
        theirs.sort(key=lambda frame: _place(frame["file"]) > 0)
        if theirs:
            place = f"{from_here(theirs[0]['file'])}:{theirs[0]['line']}, in {theirs[0]['function']}"
            place += _called(error.details, theirs[0]) if error.kind == "timeout" else ""
            found.setdefault(place, []).append(rank)
    return [f"rank {', '.join(map(str, ranks))} at {place}" for place, ranks in found.items()]


def _called(stacks: str, line: dict[str, str]) -> str:
    """The current line of the thread that came through this line; empty if it is in Lockstep's own code."""
    for thread in _THREAD.split(stacks):
        frames = [match.groupdict() for match in _FRAME.finditer(thread)]
        if line in frames and frames[0] != line:
            path, place = Path(frames[0]["file"]), _place(frames[0]["file"])
            if any(map(path.is_relative_to, _OURS)):
                continue
            file = "/".join(path.parts[place:]) if place else path.name
            return f" (then {file}:{frames[0]['line']}, in {frames[0]['function']})"
    return ""


def _theirs(file: str) -> bool:
    path, place = Path(file), _place(file)
    if any(map(path.is_relative_to, _OURS)):
        return False
    if place:
        return path.parts[place].removesuffix(".py") not in _RUNNERS
    return not file.startswith("<frozen") and not path.is_relative_to(_PYTHON)


def _place(file: str) -> int:
    """The index of the part of a path that names an installed package or module; 0 if there is none."""
    parts = Path(file).parts[:-1]
    return max((number for number, part in enumerate(parts, 1) if part in _INSTALLED), default=0)


def from_here(file: str | Path) -> str:
    """A path relative to the working directory, if it lies within it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
