"""From where modules are imported: a user's folder first, and one Lockstep alone."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import lockstep
from lockstep.home import HOME, IS_CLONE


def look_here_first(folder: Path) -> None:
    """A user's module is found from where a run was started, before any other.

    A clone of Lockstep comes last on the path: its folders, such as `oracle`, hide no package of the user's. A folder
    that has a `lockstep` of its own comes after the one that runs, so that every process imports the same one.
    """
    here = str(folder)
    others = [entry for entry in sys.path if entry not in ("", here) and not (IS_CLONE and entry == HOME)]
    clone = [HOME] if IS_CLONE else []
    if another_lockstep(folder):
        sys.path[:] = [*others, *clone, here]
    elif here in clone:
        sys.path[:] = [*others, here]
    else:
        sys.path[:] = [here, *others, *clone]


def another_lockstep(folder: Path) -> str:
    """The file of a module `lockstep` in a folder that is not the one that runs; empty where there is none."""
    found = PathFinder.find_spec("lockstep", [str(folder)])
    if found is None or found.origin is None or os.path.samefile(found.origin, str(lockstep.__file__)):
        return ""
    return found.origin
