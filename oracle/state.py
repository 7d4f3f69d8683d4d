"""The interpreter's state between two events: parameters, gradients and optimizer state, exact or enclosed.

A value is exact (on the lattice) or, once an operation has rounded in a way that is not known bit for bit, an interval.
Exact values of all parameters lie end to end in one array; an enclosed parameter has its interval beside it, and zeros
in the array, so that what is exact never waits for what is not.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.oracle import lattice
from lockstep.oracle.averaging import ANY_WAY, AVERAGINGS
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.hyperparameters import Settings, at_the_start
from lockstep.oracle.initial import initial_buffers, initial_parameters
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Formats, Inexact, Lattice
from lockstep.oracle.optimizers import AdamState, SGDState
from lockstep.oracle.setup import UNUSED, Setup

Value = Lattice | Interval


@dataclass(frozen=True, eq=False)
class Inside(Interval):
    """An interval of values of a format, by its name."""

    form: str = "float64"


ExpectedValue = npt.NDArray[np.generic] | Inside | None
Values = tuple[ExpectedValue, ...]
OptimizerState = SGDState[Value] | AdamState[Value]

# By micro-batch and parameter, of shape (samples, elements): see `oracle.fingerprint.contributions`.
Contributions = Callable[[int], list[npt.NDArray[np.int64]]]


@dataclass(frozen=True)
class Choices:
    """The choices on which correct implementations differ. Raises ValueError for an unknown one.

    averaging          how the mean is taken, one of `oracle.averaging.AVERAGINGS`, or `oracle.averaging.ANY_WAY`
    unused             the gradient of a parameter that no rank used, one of `oracle.setup.UNUSED`
    implementations    the known forms of optimizers, see `oracle.optimizer_intervals`
    eager              each micro-batch inside ``no_sync`` may be averaged as it comes
    kept               a wider format in which means may be taken, kept, clipped and stepped; gradients are rounded to
                       their own format only when they are read. "": none
    """

    averaging: str = AVERAGINGS[0]
    unused: str = UNUSED[0]
    implementations: str = "torch cpu"
    eager: bool = False
    kept: str = ""

    def __post_init__(self) -> None:
        if self.averaging not in (*AVERAGINGS, ANY_WAY):
            raise ValueError(f"an averaging is one of {', '.join((*AVERAGINGS, ANY_WAY))}, not {self.averaging!r}")
        if self.unused not in UNUSED:
            raise ValueError(f"what an unused parameter gets is one of {', '.join(UNUSED)}, not {self.unused!r}")


# What a checkpoint holds of a `State`.
_SAVED = ("weights", "buffers", "optimizer", "masters", "settings", "scale", "steps_since_overflow")


@dataclass
class Flat:
    """A value for each parameter: ``exact`` of shape (..., elements of all), and the intervals of enclosed ones."""

    exact: Lattice
    slices: list[slice]
    enclosed: dict[int, Interval] = field(default_factory=dict)

    def get(self, parameter: int) -> Value:
        """One parameter's value."""
        inside = self.enclosed.get(parameter)
        return self.exact[..., self.slices[parameter]] if inside is None else inside

    def on_rank_zero(self, parameter: int) -> Value:
        """One parameter's value where each rank has its own."""
        value = self.get(parameter)
        return Interval(value.low[0], value.high[0]) if isinstance(value, Interval) else value[0]

    def put(self, parameter: int, value: Value) -> None:
        """Replaces one parameter's value. Inexact where it may have overflowed: whether it has is then open."""
        if isinstance(value, Interval):
            if not (np.isfinite(value.low) & np.isfinite(value.high)).all():
                raise Inexact(f"parameter {parameter} or its gradient may overflow its format")
            self.enclosed[parameter] = value
            self.exact[..., self.slices[parameter]] = 0
        else:
            self.enclosed.pop(parameter, None)
            self.exact[..., self.slices[parameter]] = value


@dataclass
class State:
    """All values that the ranks hold. Gradients and buffers may differ between ranks, the rest cannot.

    has               which parameters have a gradient (None is not zero), of shape (ranks, parameters)
    infinite          which gradients have overflowed, of the same shape
    spoiled           gradients were clipped after an overflow, so none is known
    groups, forms     by parameter; ``settings`` are by group
    fresh             if ``gradients`` hold averages: the gradients that each rank has added to these, as far as they
                      are exact; else None
    eager             inside ``no_sync``: the gradients if each micro-batch had been averaged as it came; else None
    kept              by parameter: the format in which reduced gradients may be kept, their own or a wider one
    wide              the same by element
    wire              the format in which each element may travel
    over_all_ranks    means divide by the number of all ranks, also of those that are ``gone``
    saved             the content of the last checkpoint, by name
    """

    setup: Setup
    choices: Choices
    contributions: Contributions
    form: Formats
    forms: list[Formats]
    wide: Formats
    wire: Formats
    kept: list[str]
    weights: Flat
    gradients: Flat
    has: npt.NDArray[np.bool_]
    infinite: npt.NDArray[np.bool_]
    trained: npt.NDArray[np.bool_]
    groups: list[int]
    settings: Settings
    buffers: list[npt.NDArray[np.float32]]
    scale: float | None
    optimizer: dict[int, OptimizerState] = field(default_factory=dict)
    masters: dict[int, Value] = field(default_factory=dict)
    steps_since_overflow: int = 0
    unscaled: bool = False
    skip: bool = False
    spoiled: bool = False
    fresh: Lattice | None = None
    eager: Lattice | None = None
    batch: int = 0
    broadcast_due: bool = True
    over_all_ranks: bool = True
    gone: tuple[int, ...] = ()
    saved: dict[str, Any] = field(default_factory=dict)

    @property
    def multiplied(self) -> float | None:
        """By what the caller multiplies each loss, or what comes of it: the loss scale and its hooks; None: nothing."""
        doublings = self.setup.caller.doublings
        return self.scale if not doublings else (self.scale or 1.0) * 2.0**doublings

    @property
    def accumulated(self) -> list[Lattice]:
        """All that a micro-batch may be added to, by whoever averages what."""
        return [each for each in (self.gradients.exact, self.fresh, self.eager) if each is not None]


def start(setup: Setup, choices: Choices, contributions: Contributions) -> State:
    """After construction: every rank holds what rank 0 began with."""
    kept = choices.kept
    sizes = tuple(parameter.count for parameter in setup.parameters)
    names = tuple(parameter.dtype for parameter in setup.parameters)
    ends = np.cumsum(sizes).tolist()
    slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    initial = np.concatenate([value.reshape(-1) for value in initial_parameters(setup, 0)])
    shape = (setup.world_size, len(sizes))
    groups = [0] * len(sizes)
    for number, group in enumerate(setup.all_groups):
        for parameter in group.parameters:
            groups[parameter] = number
    form = lattice.formats(names, sizes)
    wide = [kept if kept and FORMATS[kept].precision > FORMATS[name].precision else name for name in names]
    weights = lattice.representable(lattice.from_integers(initial), form)
    state = State(
        setup,
        choices,
        contributions,
        form,
        [lattice.formats((name,), (size,)) for name, size in zip(names, sizes, strict=True)],
        lattice.formats(tuple(wide), sizes),
        lattice.formats(tuple(setup.wire or name for name in names), sizes),
        wide,
        Flat(weights, slices),
        Flat(np.zeros((setup.world_size, sum(sizes)), dtype=np.int64), slices),
        np.zeros(shape, dtype=bool),
        np.zeros(shape, dtype=bool),
        np.array([parameter.trainable for parameter in setup.parameters]),
        groups,
        (),
        [np.tile(values.reshape(1, -1), (setup.world_size, 1)) for values in initial_buffers(setup, 0)],
        None,
    )
    begin_optimizer(state)
    return state


def begin_optimizer(state: State) -> None:
    """The caller makes optimizer, masters and loss scale, from the parameters as they are."""
    setup = state.setup
    state.settings = at_the_start(setup)
    state.optimizer, state.masters = {}, {}
    if setup.masters:
        sixteen = [index for index in setup.tensors if FORMATS[setup.parameters[index].dtype].bytes == 2]
        state.masters = {index: _copy(state.weights.get(index)) for index in sixteen}
    state.scale = None if setup.loss_scale is None else setup.loss_scale.initial
    state.steps_since_overflow = 0
    state.unscaled = state.skip = False


def forget(state: State, tensors: Iterable[int]) -> None:
    """New tensors take the place of these: no optimizer state, and masters from the parameters as they are."""
    for tensor in tensors:
        state.optimizer.pop(tensor, None)
        if tensor in state.masters:
            state.masters[tensor] = _copy(state.weights.get(tensor))


def save(state: State) -> None:
    """A checkpoint, to go back to."""
    state.saved = copy.deepcopy({name: getattr(state, name) for name in _SAVED})


def go_back(state: State) -> None:
    """All that the last checkpoint holds becomes what it was then."""
    vars(state).update(copy.deepcopy(state.saved))


def _copy(value: Value) -> Value:
    return value if isinstance(value, Interval) else value.copy()


def drop_gradients(state: State, to_none: bool = True) -> None:
    """Gradients become None, or zero where there are some."""
    state.gradients.exact[:] = 0
    state.gradients.enclosed.clear()
    state.fresh = state.eager = None
    state.infinite[:] = False
    state.spoiled = False
    state.has &= not to_none


def told(state: State, flat: Flat, gradients: bool = False) -> Values:
    """One array or interval for each parameter, in its dtype and shape; of gradients rank 0's, None where none is."""
    numbers = lattice.to_float(flat.exact[0] if gradients else flat.exact)
    values: list[ExpectedValue] = []
    for index, parameter in enumerate(state.setup.parameters):
        tensor = state.setup.tensor(index)
        inside = flat.enclosed.get(tensor)
        if gradients and not state.has[0, tensor]:
            values.append(None)
        elif gradients and state.infinite[0, tensor]:
            values.append(np.full(parameter.shape, np.inf).astype(FORMATS[parameter.dtype].numpy))
        elif inside is not None:
            low, high = (inside.low[0], inside.high[0]) if gradients else (inside.low, inside.high)
            values.append(Inside(low.reshape(parameter.shape), high.reshape(parameter.shape), parameter.dtype))
        else:
            mine = numbers[flat.slices[tensor]]
            values.append(mine.astype(FORMATS[parameter.dtype].numpy).reshape(parameter.shape))
    return tuple(values)


def told_value(value: Value, dtype: str, shape: tuple[int, ...]) -> ExpectedValue:
    """One value as an array in a dtype, or as an interval, of the given shape."""
    if isinstance(value, Interval):
        return Inside(value.low.reshape(shape), value.high.reshape(shape), dtype)
    return lattice.to_float(value).astype(FORMATS[dtype].numpy).reshape(shape)
