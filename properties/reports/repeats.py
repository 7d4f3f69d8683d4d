"""Repetitions in a list, to be shown once."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

LONGEST = 8  # the longest repeated part
LEAST = 4  # fewer repetitions are shown in full


def repeats(items: Sequence[Item]) -> Iterator[tuple[int, int, int]]:
    """Split the items into runs: the start of each, the length of its repeated part, and the number of repetitions."""
    place = 0
    while place < len(items):
        length, times = max(((n, _times(items, place, n)) for n in range(1, LONGEST + 1)), key=_saved)
        if times < LEAST:
            length, times = 1, 1
        yield place, length, times
        place += length * times


def _times(items: Sequence[Item], place: int, length: int) -> int:
    first, times = items[place : place + length], 1
    while items[place + times * length : place + (times + 1) * length] == first:
        times += 1
    return times


def _saved(run: tuple[int, int]) -> int:
    """The number of items that need not be shown. Of equal numbers, the shortest part is chosen."""
    length, times = run
    return length * (times - 1)
