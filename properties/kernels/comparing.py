"""Compares what kernels gave with what they must give: the bits, or an interval that rounding cannot leave."""

import numpy as np

from lockstep.oracle.intervals import Interval
from lockstep.properties.kernels.reference import Array, same


def must_equal(actual: list[Array], expected: list[Array], numbers: bool = True) -> None:
    """AssertionError that names the first result and element that differ."""
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        words = same(got.tobytes(), wanted, numbers and wanted.dtype.kind in "fV")
        if words:
            raise AssertionError(f"result {index}: {words}")


def must_lie(actual: list[Array], enclosures: list[Interval], like: list[Array]) -> None:
    """AssertionError that names the first result and element that is not in its interval, or has not the sign of what
    it is ``like``, which says its dtype too.
    """
    for index, (got, inside, model) in enumerate(zip(actual, enclosures, like, strict=True)):
        seen = np.frombuffer(got.tobytes(), model.dtype)
        if seen.shape != inside.low.shape:
            raise AssertionError(f"result {index}: {len(seen)} elements, and must be {inside.low.size}")
        wrong = ~inside.contains(seen) | (np.signbit(seen) != np.signbit(model))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            words = f"{seen[first]}, and must lie in [{inside.low[first]}, {inside.high[first]}]"
            count = f"{wrong.sum()} of {wrong.size} are wrong"
            raise AssertionError(f"result {index}: element {first} is {words} ({count})")
