"""Runs a program on paper: what every rank must hold at every point where the outside can look.

Exact wherever it can be: the interpreter works on integers and checks, as it goes, that floating point would not round
either (`oracle.lattice`). A scenario for which that fails raises `Inexact` and proves nothing. What no choice of data
makes exact, such as a step of Adam or clipping by an irrational norm, gives intervals instead, and so does what follows
from it. One function here for each event; `oracle.program` says what the events mean.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from oracle import enclosures, hyperparameters, joining, lattice, loss_scaling
from oracle.bounds import Enclosure
from oracle.clipping import clip
from oracle.fingerprint import contributions
from oracle.formats import FORMATS
from oracle.intervals import Interval
from oracle.lattice import Inexact, Lattice
from oracle.mixed_precision import MASTER
from oracle.optimizers import AdamState
from oracle.program import (
    AVERAGINGS,
    UNUSED,
    Backward,
    Clip,
    EndJoin,
    Finish,
    Freeze,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    Scenario,
    SetHyperparameters,
    Step,
    Unscale,
    ZeroGrad,
)
from oracle.state import (
    ExpectedValue,
    Inside,
    State,
    Values,
    begin_optimizer,
    drop_gradients,
    forget,
    go_back,
    save,
    start,
    told,
    told_value,
)
from oracle.stepping import step


@dataclass(frozen=True)
class Expectation:
    """What holds on *every* rank, unless it is gone, one value per parameter: an array in its dtype and shape, which
    must come out bit for bit, or an `Inside`, an interval of its shape and dtype that must contain what comes out.
    None: there is no gradient.

    All by the event's place in the program: ``gradients`` after each Finish, Unscale and Clip; ``norms`` of each Clip;
    neither for a Clip after an overflow; ``parameters`` after each Step, SaveAndLoad, Load and EndJoin; after each Step
    also ``states``, the optimizer's, a mapping per parameter with torch's names (none: no state) and "master" for one
    that has a master; ``spared``, the parameters that need no master yet, as they are frozen and have no state; and
    ``loss_scales``. ``buffers`` after each Backward by rank. ``initial`` parameters after construction.
    """

    initial: Values
    gradients: dict[int, Values]
    parameters: dict[int, Values]
    norms: dict[int, ExpectedValue] = field(default_factory=dict)
    states: dict[int, tuple[dict[str, ExpectedValue], ...]] = field(default_factory=dict)
    spared: dict[int, frozenset[int]] = field(default_factory=dict)
    loss_scales: dict[int, float] = field(default_factory=dict)
    buffers: dict[int, list[list[npt.NDArray[np.float32]]]] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether every value is one for every bit, and no interval."""
        of_parameters = [
            value for kind in (self.gradients, self.parameters) for each in kind.values() for value in each
        ]
        of_states = [value for each in self.states.values() for state in each for value in state.values()]
        return not any(isinstance(value, Inside) for value in (*of_parameters, *self.norms.values(), *of_states))


def interpret(
    scenario: Scenario,
    averaging: str = AVERAGINGS[0],
    unused: str = UNUSED[0],
    implementations: str = "torch cpu",
    eager: bool = False,
    kept: str = "",
) -> Expectation:
    """The expectation of a scenario, for an implementation that averages in the given way.

    ``implementations``: of optimizers, see `oracle.optimizer_intervals`; ``eager``: it may average each micro-batch
    inside ``no_sync`` as it comes; ``kept``: the format, if any, in which it may take means of what is narrower, and
    keep them: clipped and stepped as they are, and rounded only for who looks at them. Not to be written to: it is
    there for the next who asks. Raises Inexact where an operation would round that other data would leave exact.
    """
    if averaging not in AVERAGINGS:
        raise ValueError(f"an averaging is one of {', '.join(AVERAGINGS)}, not {averaging!r}")
    if unused not in UNUSED:
        raise ValueError(f"what an unused parameter gets is one of {', '.join(UNUSED)}, not {unused!r}")
    return _interpret(scenario, averaging, unused, implementations, eager, kept)


@lru_cache(maxsize=8)  # who asks whether a scenario is exact soon asks what it gives
def _interpret(
    scenario: Scenario, averaging: str, unused: str, implementations: str, eager: bool, kept: str
) -> Expectation:
    state = start(scenario, kept)
    expectation = Expectation(told(state, state.weights), {}, {})
    for place, event in enumerate(scenario.program):
        uses_gradients = isinstance(event, Backward | Unscale | Clip) or (isinstance(event, Step) and not state.skip)
        if state.spoiled and uses_gradients:
            raise Inexact(f"{event!r} uses gradients that were clipped after an overflow: drop them first")
        match event:
            case Backward():
                _backward(state, event, averaging, eager)
                if scenario.buffers:
                    expectation.buffers[place] = _told_buffers(state)
            case Finish():
                _finish(state, averaging, unused)
            case Unscale():
                loss_scaling.unscale(state)
            case Clip() if state.infinite.any():
                _clip_infinite(state)
            case Clip():
                expectation.norms[place] = _clip(state, event)
            case Step():
                _step(state, implementations)
                expectation.states[place] = _told_states(state)
                idle = (index for index in state.masters if index not in state.optimizer and not state.trained[index])
                expectation.spared[place] = frozenset(idle)
                if state.scale is not None:
                    expectation.loss_scales[place] = state.scale
            case ZeroGrad():
                drop_gradients(state, event.set_to_none)
            case SetHyperparameters():
                state.settings = hyperparameters.after(state.settings, event)
            case Freeze():
                state.trained[scenario.names(*event.parameters)] = not event.frozen
            case Replace():
                forget(state, event.parameters)
            case SaveAndLoad():
                _save_and_load(state, event)
            case Save():
                save(state)
            case Load():
                _load(state, event)
            case Join():
                state.divide_by = event.divide_by
            case EndJoin():
                joining.end(state)
            case Raise():
                if event.drops_gradients:
                    drop_gradients(state)
        if isinstance(event, (Finish, Unscale, Clip)) and not state.spoiled:
            expectation.gradients[place] = told(state, state.gradients, gradients=True)
        elif isinstance(event, (Step, SaveAndLoad, Load, EndJoin)):
            expectation.parameters[place] = told(state, state.weights)
    return expectation


def is_exact(scenario: Scenario, averaging: str = AVERAGINGS[0], unused: str = UNUSED[0]) -> bool:
    """Whether nothing rounds, in any order of reduction, when the mean is taken in the given way."""
    try:
        return interpret(scenario, averaging, unused).exact
    except Inexact:
        return False


def _backward(state: State, event: Backward, averaging: str, eager: bool) -> None:
    """Adds each rank's gradients to those there; changes the buffers."""
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


def _accumulate(state: State, event: Backward, averaging: str, eager: bool) -> None:
    """What backward adds when it comes through all forwards once.

    Some average each micro-batch inside ``no_sync`` as it comes, and many each of several backwards that synchronize.
    Of those through several forwards each brings some elements, and zeros for the others.
    """
    local, coefficients = _local_gradients(state)
    for tensor in state.scenario.tensors:
        if tensor in state.gradients.enclosed or (
            state.scenario.probe == "quadratic" and tensor in state.weights.enclosed
        ):
            _accumulate_enclosed(state, tensor, coefficients)
            local[:, state.gradients.slices[tensor]] = 0
    several = event.backwards > 1 and (eager or event.synchronize)
    if several and event.forwards > 1:
        _average_eagerly(state, np.zeros_like(local), averaging)
    if several or (eager and (not event.synchronize or state.eager is not None)):
        _average_eagerly(state, local, averaging)
    state.gradients.exact = lattice.add([state.gradients.exact, local], state.form)
    if state.fresh is not None:
        state.fresh = lattice.add([state.fresh, local], state.form)


def _local_gradients(state: State) -> tuple[Lattice, Lattice]:
    """d loss / d p on every rank: c for the linear probe, c * p for the quadratic one, c the mean of a rank's samples.

    Those of tied parameters are added up, in any order. Zero for a parameter that takes no part. And c itself, times
    the loss scale like the loss. Shape (ranks, elements).
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
    for tensor in {parameter.tied for parameter in scenario.parameters if parameter.tied is not None}:
        names = state.scenario.names(tensor)
        parts = [local[:, state.gradients.slices[name]] for name in names]
        # With what is there already: autograd may add the names' parts one by one, in any order.
        for held in state.accumulated:
            lattice.add([*parts, held[:, state.gradients.slices[tensor]]], state.forms[tensor])
        total = lattice.add(parts, state.forms[tensor])
        for name in names:
            local[:, state.gradients.slices[name]] = total if name == tensor else 0
    return local, coefficients


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
    """Also proved in the format in which gradients may be kept: there too the reciprocal of 7 rounds, say."""
    if state.wide is not state.form:
        lattice.mean(terms, averaging, state.wide)
    return lattice.mean(terms, averaging, state.form)


def _finish(state: State, averaging: str, unused: str) -> None:
    counted = joining.counted(state)
    if state.fresh is not None:  # which some average by itself, and add to the average that is there
        _mean(state, state.fresh[counted], averaging)
    state.gradients.exact[:] = _mean(state, state.gradients.exact[counted], averaging)
    state.fresh, state.eager = np.zeros_like(state.gradients.exact), None
    for tensor in list(state.gradients.enclosed):
        joining.mean_of_enclosed(state, tensor, averaging)
    state.has[:] = state.has.any(axis=0) | (state.trained & (unused == "zero"))
    state.infinite[:] = state.infinite.any(axis=0)


def _clip(state: State, event: Clip) -> ExpectedValue:
    """Clips, and returns the norm."""
    tensors = [tensor for tensor in state.scenario.tensors if state.has[0, tensor]]
    values = [state.gradients.on_rank_zero(tensor) for tensor in tensors]
    forms = [state.forms[tensor] for tensor in tensors]
    kept = [state.kept[tensor] for tensor in tensors]
    try:
        norm, form, clipped = clip(values, forms, event.max_norm, event.norm_type, state.scenario.world_size, kept)
    except ValueError as error:  # bounds that may reach infinity
        raise Inexact(f"clipping: {error}") from error
    ranks = state.scenario.world_size
    for tensor, value in zip(tensors, clipped, strict=True):
        if isinstance(value, Interval):
            state.gradients.put(tensor, enclosures.stacked([value] * ranks))
        else:
            state.gradients.put(tensor, np.tile(value, (ranks, 1)))
    return _told_norm(norm, form)


def _clip_infinite(state: State) -> None:
    """Norm and gradients are open: torch makes NaN of what is infinite and zero of the rest, others leave all alone."""
    if not state.skip:
        raise Inexact("gradients that have overflowed are clipped before Unscale has found them")
    state.spoiled = True


def _told_norm(norm: Enclosure, form: str) -> ExpectedValue:
    if norm.low == norm.high:
        return np.asarray(float(norm.low)).astype(FORMATS[form].numpy)
    inside = Interval.enclosing([norm.low], [norm.high])
    return Inside(inside.low[0], inside.high[0], form)


def _step(state: State, implementations: str) -> None:
    """Unscales if that is still to be done; steps, unless a gradient overflowed; and lets the scale follow."""
    if state.scale is not None and not state.unscaled:
        loss_scaling.unscale(state)
    if not state.skip:
        step(state, implementations)
    if state.scale is not None:
        loss_scaling.update(state)


def _save_and_load(state: State, event: SaveAndLoad) -> None:
    drop_gradients(state)
    state.broadcast_due = True
    state.unscaled = state.skip = False
    if not event.optimizer:
        begin_optimizer(state)


def _load(state: State, event: Load) -> None:
    drop_gradients(state)
    state.unscaled = state.skip = False
    go_back(state)
    if not event.optimizer:
        begin_optimizer(state)


def _told_buffers(state: State) -> list[list[npt.NDArray[np.float32]]]:
    shapes = [buffer.shape for buffer in state.scenario.buffers]
    return [
        [values[rank].reshape(shape).copy() for values, shape in zip(state.buffers, shapes, strict=True)]
        for rank in range(state.scenario.world_size)
    ]


def _told_states(state: State) -> tuple[dict[str, ExpectedValue], ...]:
    """What torch's optimizer holds for each parameter, and its master; empty for one that was never stepped."""
    all_states: list[dict[str, ExpectedValue]] = []
    for index, parameter in enumerate(state.scenario.parameters):
        held, found = state.optimizer.get(index), dict[str, ExpectedValue]()
        dtype = MASTER if index in state.masters else parameter.dtype
        if isinstance(held, AdamState):
            found["step"] = np.asarray(held.step, dtype=np.float32)
            found["exp_avg"] = told_value(held.exp_avg, dtype, parameter.shape)
            found["exp_avg_sq"] = told_value(held.exp_avg_sq, dtype, parameter.shape)
        elif held is not None and held.momentum_buffer is not None:
            found["momentum_buffer"] = told_value(held.momentum_buffer, dtype, parameter.shape)
        if index in state.masters:
            found["master"] = told_value(state.masters[index], MASTER, parameter.shape)
        all_states.append(found)
    return tuple(all_states)
