"""Repetitions, told once."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

LONGEST = 8  # of what is looked for
LEAST = 4  # times, or it is told each time


def repeats(items: Sequence[Item]) -> Iterator[tuple[int, int, int]]:
    """Cuts the items into runs: where each begins, how many items it has, and how many times in a row these come."""
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
    """The number of items that need not be told; of equal numbers, the shortest run comes first."""
    length, times = run
    return length * (times - 1)
