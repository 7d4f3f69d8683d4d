"""What every event of a training program means. The oracle interprets these events and the ranks run them.

A scenario is a model (a tuple of parameters under a *probe*), the options of a data-parallel implementation, and a
*program*: a tuple of events that every rank executes in order.

The probes make a scenario decide every gradient, so that no autograd is needed to say what must come out. With
``c[m, s, p]`` the coefficients of micro-batch m, sample s and parameter p (`oracle.fingerprint` chooses them):

    linear       loss(m, s) = sum over p of <c[m, s, p], p>            so the gradient *is* c
    quadratic    loss(m, s) = sum over p of <c[m, s, p], p * p> / 2    so the gradient is c * p: stale weights show

The events:

    Backward   One micro-batch, forward and backward, both inside ``no_sync`` unless it synchronizes. Rank r of N holds
               the samples r*S/N .. (r+1)*S/N - 1 of the S samples; its loss is the mean of theirs. A parameter that
               does not occur in a sample's order takes no part in it. Gradients add to those already there. Dividing
               by the number of micro-batches is the caller's business, so no event does it.
    Finish     Follows each synchronizing Backward. After it the gradient of a parameter is, on every rank, the mean
               over ranks of the gradients that they had accumulated, a missing one counting as zero.
    Step       SGD: p <- p - learning_rate * gradient; a parameter without a gradient stays as it is.
    ZeroGrad   Gradients are dropped (None), or set to zero where there are some.

Three things on which practice differs are named choices that an implementation claims, never silent preferences:
how the mean is taken (``AVERAGINGS``), what a parameter gets that no rank used (``UNUSED``: its gradient stays
"untouched", or becomes "zero"), and what its bucket cap counts (bytes here, over the gradients put into one bucket).
None, zero and -0.0 are told apart.
"""

import itertools
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from oracle.formats import FORMATS

AVERAGINGS = ("sum then divide", "divide then sum", "multiply by reciprocal then sum")
UNUSED = ("untouched", "zero")
PROBES = ("linear", "quadratic")


class _Short:
    """A repr that leaves out what has its default, and still evaluates back."""

    def __repr__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            if item.default is MISSING:
                shown.append(repr(value))
            elif value != item.default:
                shown.append(f"{item.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Parameter(_Short):
    """One parameter: its shape, its dtype (a name in ``FORMATS``), and whether it is trained."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise ValueError(f"a parameter's dtype is one of {', '.join(FORMATS)}, not {self.dtype!r}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"a parameter's sizes are at least 0, not {self.shape}")

    @property
    def count(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, repr=False)
class Backward(_Short):
    """One micro-batch. ``orders[s]``: the parameters that sample s uses, in the order in which backward gets there."""

    orders: tuple[tuple[int, ...], ...]
    synchronize: bool = True


@dataclass(frozen=True, repr=False)
class Finish(_Short):
    """The end of a synchronization: gradients are final."""


@dataclass(frozen=True, repr=False)
class Step(_Short):
    """One optimizer step."""


@dataclass(frozen=True, repr=False)
class ZeroGrad(_Short):
    """Gradients become None, or zero where there are some."""

    set_to_none: bool = True


Event = Backward | Finish | Step | ZeroGrad
EVENTS: dict[str, type[Event]] = {event.__name__: event for event in (Backward, Finish, Step, ZeroGrad)}


@dataclass(frozen=True, repr=False)
class Scenario(_Short):
    """One training program for ``world_size`` ranks. Plain data: its repr evaluates back, and it has JSON both ways.

    ``bucket_cap`` is in bytes; None leaves it to the implementation. ``learning_rate`` is a power of two, so that steps
    can be exact. ``only`` silences every contribution but one, given as (micro-batch, sample, parameter, element):
    by linearity, runs with one contribution at a time tell the coefficient of each in every gradient.
    """

    world_size: int
    parameters: tuple[Parameter, ...]
    program: tuple[Event, ...]
    probe: str = "linear"
    bucket_cap: int | None = None
    learning_rate: float = 0.5
    only: tuple[int, int, int, int] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"a world has at least one rank, not {self.world_size}")
        if self.probe not in PROBES:
            raise ValueError(f"a probe is one of {', '.join(PROBES)}, not {self.probe!r}")
        if self.bucket_cap is not None and self.bucket_cap < 1:
            raise ValueError(f"a bucket cap is at least one byte, not {self.bucket_cap}")
        if not 0 < self.learning_rate <= 1 or math.frexp(self.learning_rate)[0] != 0.5:
            raise ValueError(f"a learning rate is a power of two of at most 1, not {self.learning_rate}")
        _check_program(self)

    @property
    def samples(self) -> int:
        """Samples in a micro-batch, over all ranks: as many as ranks unless the program says otherwise."""
        return next((len(event.orders) for event in self.program if isinstance(event, Backward)), self.world_size)

    @property
    def microbatches(self) -> tuple[Backward, ...]:
        """The Backward events, in the order of the program: micro-batch m is the m-th."""
        return tuple(event for event in self.program if isinstance(event, Backward))

    def order(self, microbatch: int, rank: int) -> tuple[int, ...]:
        """The order in which backward reaches the parameters on a rank: that of first use among its samples."""
        per_rank = self.samples // self.world_size
        mine = self.microbatches[microbatch].orders[rank * per_rank : (rank + 1) * per_rank]
        return tuple(dict.fromkeys(parameter for order in mine for parameter in order))

    def to_json(self) -> str:
        """The scenario as JSON."""
        data = asdict(self)
        data["program"] = [{"event": type(event).__name__, **asdict(event)} for event in self.program]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> "Scenario":
        """The scenario that `to_json` wrote."""
        data = _tuples(json.loads(text))
        data["parameters"] = tuple(Parameter(**parameter) for parameter in data["parameters"])
        data["program"] = tuple(EVENTS[event.pop("event")](**event) for event in data["program"])
        return cls(**data)


def _tuples(data: Any) -> Any:
    """JSON has lists only; a scenario has tuples only."""
    if isinstance(data, list):
        return tuple(_tuples(item) for item in data)
    if isinstance(data, dict):
        return {key: _tuples(value) for key, value in data.items()}
    return data


def _check_program(scenario: Scenario) -> None:
    """A program is well formed if its backwards use trainable parameters and each synchronization is finished."""
    trainable = {index for index, parameter in enumerate(scenario.parameters) if parameter.trainable}
    samples, unfinished, unsynchronized = scenario.samples, False, False
    if samples < 1:
        raise ValueError(f"a Backward orders at least one sample, not {samples} samples")
    if samples % scenario.world_size:
        raise ValueError(f"{samples} samples cannot be shared evenly by {scenario.world_size} ranks")
    for event in scenario.program:
        if unfinished != isinstance(event, Finish):
            raise ValueError("Finish follows each synchronizing Backward, and nothing else")
        unfinished = isinstance(event, Backward) and event.synchronize
        if isinstance(event, Backward):
            unsynchronized = not event.synchronize
            if len(event.orders) != samples:
                raise ValueError(f"a Backward orders {len(event.orders)} samples where the first ordered {samples}")
            for order in event.orders:
                if len(set(order)) != len(order) or not set(order) <= trainable:
                    raise ValueError(f"the order {order} does not name trainable parameters once each")
        elif unsynchronized:
            raise ValueError(f"{event!r} follows a Backward that did not synchronize")
    for batch, rank in itertools.product(range(len(scenario.microbatches)), range(scenario.world_size)):
        if not scenario.order(batch, rank):
            raise ValueError(f"rank {rank} uses no parameter in micro-batch {batch}, so there is no backward to run")
    if unfinished or unsynchronized:
        raise ValueError("the program ends before its last Backward is synchronized and finished")
    if scenario.only is not None:
        batch, sample, parameter, element = scenario.only
        limits = (len(scenario.microbatches), samples, len(scenario.parameters))
        there = all(0 <= place < limit for place, limit in zip((batch, sample, parameter), limits, strict=True))
        if not there or not 0 <= element < scenario.parameters[parameter].count:
            raise ValueError(f"there is no contribution {scenario.only} (micro-batch, sample, parameter, element)")
