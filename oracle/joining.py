"""Ranks that run out of micro-batches: what they have counts as zero, and what the mean of the others divides by.

As torch's DistributedDataParallel.join has it: "joined" ranks shadow the collectives of the others with zeros; the mean
divides by the world size, so that every sample weighs the same, or by the number of ranks that remain, so that a step
is that of a smaller world; at the end all ranks are given the parameters of one that was among the last.
"""

from lockstep.oracle.intervals import Interval
from lockstep.oracle.state import State

DIVISORS = ("world size", "remaining ranks")


def leave(state: State, gone: tuple[int, ...]) -> None:
    """From here on those ranks have zeros for gradients, and none of their own."""
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
    """The ranks that a mean is over: all, those that are gone with zeros, or those that remain."""
    everyone = range(state.setup.world_size)
    return [rank for rank in everyone if rank not in state.gone or state.over_all_ranks]
