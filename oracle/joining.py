"""Ranks that run out of micro-batches: their contribution is zero, and the mean of the others divides by one of two
counts.

The rules are those of torch's DistributedDataParallel.join. "Joined" ranks shadow the collectives of the others with
zeros. The mean divides by the world size, so that every sample weighs the same; or by the number of ranks that remain,
so that a step is that of a smaller world. At the end all ranks get the parameters of one of the last.
"""

from lockstep.oracle.intervals import Interval
from lockstep.oracle.state import State

DIVISORS = ("world size", "remaining ranks")


def leave(state: State, gone: tuple[int, ...]) -> None:
    """From here on the gradients of these ranks count as zeros, and they have none of their own."""
    state.gone = gone
    if gone:
        rows = list(gone)
        for held in state.accumulated:
            held[rows] = 0
        for tensor, value in list(state.gradients.enclosed.items()):
            low, high = value.low.copy(), value.high.copy()
            low[rows] = high[rows] = 0
            state.gradients.put(tensor, Interval(low, high))
        state.has[rows] = False


def counted(state: State) -> list[int]:
    """The ranks that a mean is over: all, with zeros for those that are gone, or those that remain."""
    everyone = range(state.setup.world_size)
    return [rank for rank in everyone if rank not in state.gone or state.over_all_ranks]
