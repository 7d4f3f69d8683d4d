"""Greedy descent: of what fails, the least that still does, one change at a time."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def descend(value: T, simpler: Callable[[T], Iterable[T]], fails: Callable[[T], bool], most_runs: int) -> T:
    """Go on to the first of the ``simpler`` values that ``fails`` too, until none does.

    Values that print alike are tried once. After ``most_runs`` calls of ``fails`` it gives what it has found.
    """
    tried = {repr(value)}
    while True:
        for each in simpler(value):
            if repr(each) in tried:
                continue
            if len(tried) > most_runs:
                return value
            tried.add(repr(each))
            if fails(each):
                value = each
                break
        else:
            return value
