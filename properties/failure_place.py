"""The place in a program where a rank failed: the note that the rank adds to the error, and its parser."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

CONSTRUCTION = "while it was constructed"
_CONSTRUCTED = re.compile(rf"{CONSTRUCTION}(?: as .*\))?", re.DOTALL)
_EVENT = re.compile(r"(?:in event (\d+), .*|after event (\d+))", re.DOTALL)


def note(place: int, program: Sequence[Any], call: str = "") -> str:
    """The note on an error in the event of that place; -1: in construction; the program's length: after the last event.

    ``call``: the constructor call in words, if it depends on the program.
    """
    if place < 0:
        return f"{CONSTRUCTION} as {call}" if call else CONSTRUCTION
    return f"in event {place}, {program[place]!r}" if place < len(program) else f"after event {place - 1}"


def construction_of(notes: Iterable[str]) -> str:
    """The constructor call that one of these notes holds, or ""."""
    return next((each for each in notes if each != CONSTRUCTION and _CONSTRUCTED.fullmatch(each)), "")


def place_of(notes: Iterable[str]) -> int | None:
    """The last event that had begun according to one of these notes; -1: none had begun. None if no note says it."""
    for each in notes:
        if _CONSTRUCTED.fullmatch(each):
            return -1
        if match := _EVENT.fullmatch(each):
            return int(match[1] or match[2])
    return None
