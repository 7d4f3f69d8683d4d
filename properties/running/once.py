"""A result that one process of a run finds for all of them."""

import fcntl
from collections.abc import Callable
from pathlib import Path


def once(folder: Path | None, name: str, find: Callable[[], str]) -> str:
    """The result of ``find``, which the first process of a run that asks calls; the others wait for the result.

    ``folder``: the one that all processes of the run share; None if there is one process. If the process that calls
    ``find`` dies, the next one calls it.
    """
    if folder is None:
        return find()
    found = folder / f"{name}.found"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when it is closed, also by the death of the process
        if not found.exists():
            text = find()
            aside = found.with_suffix(".part")
            aside.write_text(text)
            aside.replace(found)
        return found.read_text()
