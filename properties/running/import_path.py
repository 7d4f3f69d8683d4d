"""The folders from which modules are imported: the user's folder first, and exactly one Lockstep."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import lockstep
from lockstep.home import HOME, IS_CLONE


def look_here_first(folder: Path) -> None:
    """Put the folder in which a run was started first on the import path, so that a user's modules are found there.

    A clone of Lockstep comes last, so that its folders, such as `oracle`, hide no package of the user's. If the user's
    folder contains another `lockstep`, that folder comes after the running one. So every process imports the same one.
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
    """The file of a module `lockstep` in a folder, if it is not the running one; empty if there is none."""
    found = PathFinder.find_spec("lockstep", [str(folder)])
    if found is None or found.origin is None or os.path.samefile(found.origin, str(lockstep.__file__)):
        return ""
    return found.origin
