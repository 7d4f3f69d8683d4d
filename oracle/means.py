"""The mean of gradients over ranks, exact or enclosed, in each format in which an implementation may take it."""

import numpy as np

from lockstep.oracle import enclosures, joining, lattice
from lockstep.oracle.lattice import Lattice
from lockstep.oracle.state import State


def mean(state: State, terms: Lattice) -> Lattice:
    """The mean over ranks. Raises Inexact if it rounds.

    It is also proved in the format in which gradients may be kept, and in the one in which they may travel: the
    reciprocal of 7, for example, rounds there too.
    """
    averaging = state.choices.averaging
    if state.wide is not state.form:
        lattice.mean(terms, averaging, state.wide)
    if state.wire is not state.form:
        lattice.mean(lattice.representable(terms, state.wire), averaging, state.wire)
    return lattice.mean(terms, averaging, state.form)


def average_eagerly(state: State, local: Lattice) -> None:
    """Proof that nothing rounds if each micro-batch is averaged as it comes, alone or together with the accumulated
    gradients.
    """
    there, counted = state.gradients.exact if state.eager is None else state.eager, joining.counted(state)
    mean(state, local[counted])
    together = mean(state, lattice.add([there, local], state.form)[counted])
    state.eager = np.tile(together, (len(local), 1))


def mean_of_enclosed(state: State, tensor: int) -> None:
    """The mean of a gradient that is an interval, on every rank."""
    ranks = enclosures.ranks_apart(state.gradients.enclosed[tensor])
    form, terms = state.setup.parameters[tensor].dtype, [ranks[rank] for rank in joining.counted(state)]
    averaging, wire = state.choices.averaging, state.setup.wire
    inside = enclosures.in_either(lambda name: enclosures.mean(terms, averaging, name, wire), form, state.kept[tensor])
    state.gradients.put(tensor, enclosures.stacked([inside] * len(ranks)))
