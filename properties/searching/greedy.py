"""Greedy descent: simplify a failing value one change at a time."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def descend(value: T, simpler: Callable[[T], Iterable[T]], fails: Callable[[T], bool], most_runs: int) -> T:
    """Move to the first of the ``simpler`` values that ``fails`` too, until none does.

    Values with the same repr are tried once. After ``most_runs`` calls of ``fails``, the simplest value so far is
    returned.
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
