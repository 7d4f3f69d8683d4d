"""The values of a rank's model when it is built. They differ between ranks, so that a rank that keeps its own shows."""

import numpy as np
import numpy.typing as npt

from lockstep.oracle.setup import Setup


def initial_parameters(setup: Setup, rank: int) -> list[npt.NDArray[np.float64]]:
    """Small integers, different on every rank and in every element."""
    sizes = [parameter.count for parameter in setup.parameters]
    start, values = rank * sum(sizes) + 1, []
    for size, parameter in zip(sizes, setup.parameters, strict=True):
        values.append(np.arange(start, start + size, dtype=np.float64).reshape(parameter.shape))
        start += size
    return values


def initial_buffers(setup: Setup, rank: int) -> list[npt.NDArray[np.float32]]:
    """Integers, different on every rank and in every element.

    The first one needs 13 bits, so that a buffer that passes through a 16-bit format shows.
    """
    start_at, values = 2**12 + 1 + rank * sum(int(np.prod(buffer.shape)) for buffer in setup.buffers), []
    for buffer in setup.buffers:
        count = int(np.prod(buffer.shape))
        values.append(np.arange(start_at, start_at + count, dtype=np.float32).reshape(buffer.shape))
        start_at += count
    return values
