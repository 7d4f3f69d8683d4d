"""One optimizer step of every parameter that has a gradient: exact for SGD on exact data, enclosed otherwise.

What can be exact must be: SGD whose hyper-parameters are short sums of powers of two raises Inexact where the data do
not stay exact. What no data makes exact (Adam, a momentum of 0.9) gives intervals, and so does what began as one.
"""

from copy import copy

from lockstep.oracle import lattice, mixed_precision
from lockstep.oracle.enclosures import as_interval
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Formats, Inexact, Lattice
from lockstep.oracle.optimizer_intervals import adam_step_interval, sgd_step_interval
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState
from lockstep.oracle.state import OptimizerState, State, Value


def step(state: State, groups: tuple[int, ...] | None) -> None:
    """Every parameter of these groups, or of all, that has a gradient takes a step; those with a master in float32."""
    for parameter in state.setup.tensors:
        if not state.has[0, parameter] or (groups is not None and state.groups[parameter] not in groups):
            continue
        if state.infinite[0, parameter]:
            raise Inexact(f"parameter {parameter} takes a step with an infinite gradient")
        # A copy: a momentum buffer begins as the gradient, which ZeroGrad then overwrites.
        gradient = copy(state.gradients.on_rank_zero(parameter))
        mixed = parameter in state.masters
        form = (
            lattice.formats((mixed_precision.MASTER,), (gradient_size(gradient),)) if mixed else state.forms[parameter]
        )
        before = state.masters[parameter] if mixed else state.weights.get(parameter)
        settings = state.settings[state.groups[parameter]]
        after, state.optimizer[parameter] = one_step(
            settings, before, gradient, state.optimizer.get(parameter), form, state.choices.implementations
        )
        if mixed:
            state.masters[parameter] = after
            after = mixed_precision.cast(after, FORMATS[state.setup.parameters[parameter].dtype])
        state.weights.put(parameter, after)


def gradient_size(value: Value) -> int:
    """The number of elements of a value."""
    return int(value.low.size if isinstance(value, Interval) else value.size)


def one_step(
    settings: SGD | Adam, param: Value, grad: Value, state: OptimizerState | None, form: Formats, implementations: str
) -> tuple[Value, OptimizerState]:
    """One parameter's step: exact if all that goes in is and the hyper-parameters allow it, else enclosed."""
    name = form.forms[0].name
    if isinstance(settings, SGD):
        before = state if isinstance(state, SGDState) else SGDState[Value]()
        values = (param, grad, before.momentum_buffer)
        if _can_be_exact(settings, form) and not any(isinstance(value, Interval) for value in values):
            return sgd_step_exact(settings, param, grad, before, form)  # type: ignore[arg-type]  # no Interval is left
    if name not in ("float32", "float64"):
        raise Inexact(f"a step in {name} rounds, and is enclosed in float32 and float64 only: use masters")
    try:
        return _enclosed_step(settings, param, grad, state, name, implementations)
    except ValueError as error:  # ends that may reach infinity, or a divisor that may be zero
        raise Inexact(f"a step of {settings}: {error}") from error


def _enclosed_step(
    settings: SGD | Adam, param: Value, grad: Value, state: OptimizerState | None, name: str, implementations: str
) -> tuple[Value, OptimizerState]:
    inside, gradient = as_interval(param), as_interval(grad)
    if isinstance(settings, SGD):
        before = state if isinstance(state, SGDState) else SGDState[Value]()
        buffer = None if before.momentum_buffer is None else as_interval(before.momentum_buffer)
        new, after = sgd_step_interval(settings, inside, gradient, SGDState(buffer), name, implementations)
        return new, SGDState[Value](after.momentum_buffer)
    zero = as_interval(lattice.from_integers([0] * gradient_size(grad)))
    moments = AdamState(zero, zero)
    if isinstance(state, AdamState):
        moments = AdamState(as_interval(state.exp_avg), as_interval(state.exp_avg_sq), state.step)
    stepped, m = adam_step_interval(settings, inside, gradient, moments, name, implementations)
    return stepped, AdamState[Value](m.exp_avg, m.exp_avg_sq, m.step)


def _can_be_exact(settings: SGD, form: Formats) -> bool:
    """True if every factor of a step is a short number of the format, so that there is data that stays exact."""
    factors = (settings.lr, settings.momentum, 1 - settings.dampening, settings.weight_decay)
    return all(lattice.is_short(factor, form.forms[0]) for factor in factors)


def sgd_step_exact(
    settings: SGD, param: Lattice, grad: Lattice, state: SGDState[Lattice], form: Formats
) -> tuple[Lattice, SGDState[Value]]:
    """`oracle.optimizers.sgd_step` on the lattice: every product and every sum is checked to be exact, fused or not.

    Raises Inexact where one is not, and where a momentum buffer may come to hold -0.0, which is not on the lattice.
    """

    def times(factor: float, values: Lattice) -> Lattice:
        return lattice.scale(values, factor, form)

    if settings.maximize and settings.momentum != 0 and not grad.all():
        raise Inexact(f"with maximize the momentum buffer of a gradient of zero may be -0.0: {grad}")
    g = -grad if settings.maximize else grad
    if settings.weight_decay != 0:
        g = lattice.add([g, times(settings.weight_decay, param)], form)
    if settings.momentum == 0:
        return lattice.add([param, -times(settings.lr, g)], form), SGDState[Value](state.momentum_buffer)
    b = g
    if state.momentum_buffer is not None:
        b = lattice.add([times(settings.momentum, state.momentum_buffer), times(1 - settings.dampening, g)], form)
    direction = lattice.add([g, times(settings.momentum, b)], form) if settings.nesterov else b
    return lattice.add([param, -times(settings.lr, direction)], form), SGDState[Value](b)
