"""Compare the results of kernels with the expected ones: equal bits, or membership in a proved interval."""

import numpy as np

from lockstep.oracle.intervals import Interval
from lockstep.properties.kernels.reference import Array, same


def must_equal(actual: list[Array], expected: list[Array], numbers: bool = True) -> None:
    """Raise AssertionError naming the first result and element that differ."""
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        words = same(got.tobytes(), wanted, numbers and wanted.dtype.kind in "fV")
        if words:
            raise AssertionError(f"result {index}: {words}")


def must_lie(actual: list[Array], enclosures: list[Interval], like: list[Array]) -> None:
    """Raise AssertionError naming the first result and element outside its interval, or with a wrong sign.

    ``like``: values with the right sign and dtype.
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
