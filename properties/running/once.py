"""What one process of a run finds out for all."""

import fcntl
from collections.abc import Callable
from pathlib import Path


def once(folder: Path | None, name: str, find: Callable[[], str]) -> str:
    """What ``find`` returns, called by the first process of a run that asks; the others wait for it.

    ``folder``: the one that all processes of the run share; None: there is one process. If a process dies meanwhile,
    the next one calls ``find``.
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
