"""The distribution of a micro-batch's coefficients over several forwards that come before its backward."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def by_forward(numbers: Sequence[npt.NDArray[np.float64]], forwards: int) -> list[list[npt.NDArray[np.float64]]]:
    """The coefficients of a micro-batch, [p], shared out between the forwards before its backward: [forward][p].

    Element e of parameter p goes to forward (p + e) mod ``forwards``, so that adding up what the forwards give adds
    zeros alone, and rounds nothing.
    """

    def share(parameter: int, values: npt.NDArray[np.float64], forward: int) -> npt.NDArray[np.float64]:
        turns = turns_of_forwards(parameter, values.size, forwards)
        return np.where(turns.reshape(values.shape) == forward, values, 0.0)

    if forwards == 1:
        return [list(numbers)]
    return [[share(p, values, forward) for p, values in enumerate(numbers)] for forward in range(forwards)]


def turns_of_forwards(parameter: int, count: int, forwards: int) -> npt.NDArray[np.int64]:
    """The forward that has each of the ``count`` elements of a parameter's coefficients. See `by_forward`."""
    return (np.arange(count) + parameter) % forwards
