"""Ranks that run out of micro-batches: what they have counts as zero, and what the mean of the others divides by.

As torch's DistributedDataParallel.join has it: "joined" ranks shadow the collectives of the others with zeros; the mean
divides by the world size, so that every sample weighs the same, or by the number of ranks that remain, so that a step
is that of a smaller world; at the end all ranks are given the parameters of one that was among the last.
"""

from lockstep.oracle import enclosures
from lockstep.oracle.intervals import Interval
from lockstep.oracle.program import DIVISORS
from lockstep.oracle.state import State, drop_gradients


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
    everyone = range(state.scenario.world_size)
    return [rank for rank in everyone if rank not in state.gone or state.divide_by == DIVISORS[0]]


def mean_of_enclosed(state: State, tensor: int, averaging: str) -> None:
    """The mean of a gradient that is an interval, on every rank."""
    ranks = enclosures.ranks_apart(state.gradients.enclosed[tensor])
    form, terms = state.scenario.parameters[tensor].dtype, [ranks[rank] for rank in counted(state)]
    wire = state.scenario.wire
    mean = enclosures.in_either(lambda name: enclosures.mean(terms, averaging, name, wire), form, state.kept[tensor])
    state.gradients.put(tensor, enclosures.stacked([mean] * len(ranks)))


def end(state: State) -> None:
    """All ranks are there again, without gradients."""
    drop_gradients(state)
    state.divide_by, state.gone = DIVISORS[0], ()
