"""The place in its program where a rank failed: the note that it puts on the error, and its reading by the judge."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

CONSTRUCTION = "while it was constructed"
_CONSTRUCTED = re.compile(rf"{CONSTRUCTION}(?: as .*\))?", re.DOTALL)
_EVENT = re.compile(r"(?:in event (\d+), .*|after event (\d+))", re.DOTALL)


def note(place: int, program: Sequence[Any], call: str = "") -> str:
    """Of an error in the event of that place; -1: in construction; the program's length: after its last event.

    ``call``: how it was constructed, in words, where that is not the same in every program.
    """
    if place < 0:
        return f"{CONSTRUCTION} as {call}" if call else CONSTRUCTION
    return f"in event {place}, {program[place]!r}" if place < len(program) else f"after event {place - 1}"


def construction_of(notes: Iterable[str]) -> str:
    """The call that constructed it, if one of these notes tells it; else empty."""
    return next((each for each in notes if each != CONSTRUCTION and _CONSTRUCTED.fullmatch(each)), "")


def place_of(notes: Iterable[str]) -> int | None:
    """The last event that had begun, -1: none, as one of these notes says it; None where none does."""
    for each in notes:
        if _CONSTRUCTED.fullmatch(each):
            return -1
        if match := _EVENT.fullmatch(each):
            return int(match[1] or match[2])
    return None
