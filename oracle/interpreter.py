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

from lockstep.oracle import enclosures, hyperparameters, joining, loss_scaling
from lockstep.oracle.bounds import Enclosure
from lockstep.oracle.clipping import clip
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.gradients import backward, finish
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.mixed_precision import MASTER
from lockstep.oracle.optimizers import AdamState
from lockstep.oracle.program import (
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
    Write,
    ZeroGrad,
)
from lockstep.oracle.state import (
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
from lockstep.oracle.stepping import step


@dataclass(frozen=True)
class Expectation:
    """What holds on *every* rank, unless it is gone, one value per parameter: an array in its dtype and shape, which
    must come out bit for bit, or an `Inside`, an interval of its shape and dtype that must contain what comes out.
    None: there is no gradient.

    All by the event's place in the program: ``gradients`` after each Finish, Unscale and Clip; ``norms`` of each Clip;
    neither for a Clip after an overflow; ``parameters`` after each Step, Write, SaveAndLoad, Load and EndJoin; after
    each Step also ``states``, the optimizer's, a mapping per parameter with torch's names (none: no state) and "master"
    for one that has a master; ``spared``, the parameters that need no master yet, as they are frozen and have no state;
    and ``loss_scales``. ``buffers`` after each Backward by rank. ``initial`` parameters after construction.
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
    keep them: clipped and stepped as they are, and rounded only for who looks at them. Kept for later calls, and
    not to be changed. Raises Inexact where an operation would round that other data would leave exact.
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
                backward(state, event, averaging, eager)
                if scenario.buffers:
                    expectation.buffers[place] = _told_buffers(state)
            case Finish():
                finish(state, averaging, unused)
            case Unscale():
                loss_scaling.unscale(state)
            case Clip() if state.infinite.any():
                _clip_infinite(state)
            case Clip():
                expectation.norms[place] = _clip(state, event)
            case Step():
                _step(state, event, implementations)
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
            case Write():
                for parameter in event.parameters:
                    state.weights.put(parameter, -state.weights.get(parameter))
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
        elif isinstance(event, (Step, Write, SaveAndLoad, Load, EndJoin)):
            expectation.parameters[place] = told(state, state.weights)
    return expectation


def is_exact(scenario: Scenario, averaging: str = AVERAGINGS[0], unused: str = UNUSED[0]) -> bool:
    """Whether nothing rounds, in any order of reduction, when the mean is taken in the given way."""
    try:
        return interpret(scenario, averaging, unused).exact
    except Inexact:
        return False


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


def _step(state: State, event: Step, implementations: str) -> None:
    """Unscales if that is still to be done; steps, unless a gradient overflowed; and lets the scale follow."""
    if state.scale is not None and not state.unscaled:
        loss_scaling.unscale(state)
    if not state.skip:
        step(state, event.groups, implementations)
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
