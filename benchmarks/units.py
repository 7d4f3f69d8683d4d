"""The portions of a run on a GPU, filed one by one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Unit:
    """Something that is done in one go. ``run`` is given the seconds left, and returns what is filed, as JSON has it.

    ``takes``: about so many seconds.
    """

    name: str
    takes: float
    run: Callable[[float], Any]


class NotDone(Exception):
    """A unit that came to no end, in words: nothing is filed, and the next run tries again."""
