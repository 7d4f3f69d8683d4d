"""Gradients on paper: what backwards add to them, and the mean over ranks.

Exact where it can be (`oracle.lattice`), or intervals. Raises `Inexact` where neither holds for all the ways in which
an implementation may take them.
"""

import numpy as np
import numpy.typing as npt

from lockstep.oracle import enclosures, joining, lattice, loss_scaling
from lockstep.oracle.fingerprint import contributions, turns_of_forwards
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Inexact, Lattice
from lockstep.oracle.program import Backward
from lockstep.oracle.state import State


def backward(state: State, event: Backward, averaging: str, eager: bool) -> None:
    """Adds each rank's gradients to those there; changes the buffers.

    ``averaging``, ``eager``: as `oracle.interpreter.interpret` has them. Raises Inexact.
    """
    if state.scale is not None and state.scale > min(form.largest for form in state.form.forms):
        raise Inexact(f"a loss scale of {state.scale:g} overflows in a format of the model")
    joining.leave(state, event.gone)
    ranks, batch = state.scenario.world_size, state.batch
    for buffer in state.buffers:
        if state.scenario.broadcast_buffers and state.broadcast_due:
            buffer[:] = buffer[0]
        if state.scenario.mode == "train":
            buffer += batch * ranks + 1 + np.arange(ranks, dtype=np.float32)[:, None]
    state.broadcast_due = event.synchronize
    for _ in range(event.passes):
        _accumulate(state, event, averaging, eager)
    for rank in range(ranks):
        used = [state.scenario.tensor(parameter) for parameter in state.scenario.order(batch, rank)]
        state.has[rank, used] = True
        if rank in event.overflow:
            state.infinite[rank, [tensor for tensor in used if state.scenario.parameters[tensor].count]] = True
    state.batch += 1


def finish(state: State, averaging: str, unused: str) -> None:
    """Gives every rank the mean, taken in that way; ``unused``: one of `oracle.program.UNUSED`. Raises Inexact."""
    counted = joining.counted(state)
    if state.fresh is not None:  # which some average by itself, and add to the average that is there
        _mean(state, state.fresh[counted], averaging)
    state.gradients.exact[:] = _mean(state, state.gradients.exact[counted], averaging)
    state.fresh, state.eager = np.zeros_like(state.gradients.exact), None
    for tensor in list(state.gradients.enclosed):
        joining.mean_of_enclosed(state, tensor, averaging)
    state.has[:] = state.has.any(axis=0) | (state.trained & (unused == "zero"))
    state.infinite[:] = state.infinite.any(axis=0)


def _accumulate(state: State, event: Backward, averaging: str, eager: bool) -> None:
    """What backward adds when it comes through all forwards once.

    Some average each micro-batch inside ``no_sync`` as it comes, and many each of several backwards that synchronize.
    """
    local, coefficients = _local_gradients(state)
    for tensor in state.scenario.tensors:
        if tensor in state.gradients.enclosed or (
            state.scenario.probe == "quadratic" and tensor in state.weights.enclosed
        ):
            _accumulate_enclosed(state, tensor, coefficients)
            for name in state.scenario.names(tensor):
                local[:, state.gradients.slices[name]] = 0
    several = event.backwards > 1 and (eager or event.synchronize)
    for part in _through_each_forward(state, local, event.forwards) if several else [local]:
        part = _tied_added_up(state, part)
        if several or (eager and (not event.synchronize or state.eager is not None)):
            _average_eagerly(state, part, averaging)
        state.gradients.exact = lattice.add([state.gradients.exact, part], state.form)
        if state.fresh is not None:
            state.fresh = lattice.add([state.fresh, part], state.form)


def _local_gradients(state: State) -> tuple[Lattice, Lattice]:
    """d loss / d p on every rank: c for the linear probe, c * p for the quadratic one, c the mean of a rank's samples.

    By name: of parameters that are tied each has its own. Zero for one that takes no part. And c itself, times the loss
    scale like the loss. Shape (ranks, elements).
    """
    scenario, form = state.scenario, state.form
    per_rank = scenario.samples // scenario.world_size
    table = np.concatenate(contributions(scenario)[state.batch], axis=1)
    totals = table.reshape(scenario.world_size, per_rank, -1).sum(axis=1)
    if state.scale is not None:  # c is made before it is scaled
        lattice.divide(lattice.from_integers(totals), per_rank, form)
    totals = loss_scaling.scaled(totals, state.scale)
    coefficients = lattice.divide(lattice.from_integers(totals), per_rank, form)
    if scenario.probe == "linear":
        local = coefficients.copy()
    else:
        weights = state.weights.exact.copy()
        for index, parameter in enumerate(scenario.parameters):
            if parameter.tied is not None:
                weights[state.weights.slices[index]] = weights[state.weights.slices[parameter.tied]]
        if (_multiplied(state) & (((totals == 0) & (weights < 0)) | ((totals < 0) & (weights == 0)))).any():
            raise Inexact("zero times a negative number is -0.0, which the lattice does not have")
        local = lattice.divide(lattice.multiply(totals, weights, form), per_rank, form)
    return local, coefficients


def _through_each_forward(state: State, local: Lattice, forwards: int) -> list[Lattice]:
    """What each of as many backwards brings (`oracle.fingerprint.by_forward`): some elements, zeros for the others."""
    parameters = enumerate(state.scenario.parameters)
    turns = np.concatenate([turns_of_forwards(index, parameter.count, forwards) for index, parameter in parameters])
    return [np.where(turns == forward, local, 0) for forward in range(forwards)]


def _tied_added_up(state: State, local: Lattice) -> Lattice:
    """Gradients by name as gradients by tensor, which stand under its first name."""
    tied = {parameter.tied for parameter in state.scenario.parameters if parameter.tied is not None}
    local = local.copy() if tied else local
    for tensor in tied:
        names = state.scenario.names(tensor)
        parts = [local[:, state.gradients.slices[name]] for name in names]
        # With what is there already: autograd may add the names' parts one by one, in any order.
        for held in state.accumulated:
            lattice.add([*parts, held[:, state.gradients.slices[tensor]]], state.forms[tensor])
        total = lattice.add(parts, state.forms[tensor])
        for name in names:
            local[:, state.gradients.slices[name]] = total if name == tensor else 0
    return local


def _multiplied(state: State) -> npt.NDArray[np.bool_]:
    """Whether a rank multiplies by the exact weight of an element in this micro-batch. Shape (ranks, elements)."""
    scenario = state.scenario
    used = np.zeros((scenario.world_size, len(scenario.parameters)), dtype=bool)
    for rank, uses in enumerate(used):
        order = scenario.order(state.batch, rank)
        uses[[index for index in order if scenario.tensor(index) not in state.weights.enclosed]] = True
    return np.repeat(used, [parameter.count for parameter in scenario.parameters], axis=1)


def _accumulate_enclosed(state: State, tensor: int, coefficients: Lattice) -> None:
    """RN(g + RN(c p)), for parameters or gradients that are intervals."""
    form = state.scenario.parameters[tensor].dtype
    terms = [enclosures.as_interval(state.gradients.get(tensor))]
    for name in state.scenario.names(tensor):
        part = enclosures.coefficients_fit(coefficients[:, state.weights.slices[name]], state.forms[tensor])
        if state.scenario.probe == "quadratic":
            weights = enclosures.as_interval(state.weights.get(tensor))
            wide = Interval(np.broadcast_to(weights.low, part.low.shape), np.broadcast_to(weights.high, part.low.shape))
            part = (part * wide).round(form)
        terms.append(part)
    total = enclosures.in_either(lambda name: enclosures.add(terms, name), form, state.kept[tensor])
    state.gradients.put(tensor, total)


def _average_eagerly(state: State, local: Lattice, averaging: str) -> None:
    """Proves that who averages each micro-batch as it comes, by itself or with what is there, rounds nothing either."""
    there, counted = state.gradients.exact if state.eager is None else state.eager, joining.counted(state)
    _mean(state, local[counted], averaging)
    mean = _mean(state, lattice.add([there, local], state.form)[counted], averaging)
    state.eager = np.tile(mean, (len(local), 1))


def _mean(state: State, terms: Lattice, averaging: str) -> Lattice:
    """Also proved in the format in which gradients may be kept, for there too the reciprocal of 7 rounds, say, and in
    the one in which they may travel.
    """
    if state.wide is not state.form:
        lattice.mean(terms, averaging, state.wide)
    if state.wire is not state.form:
        lattice.mean(lattice.representable(terms, state.wire), averaging, state.wire)
    return lattice.mean(terms, averaging, state.form)
