"""A scenario: the choices made once (`oracle.setup`), and a *program*: events that every rank executes in order.

The meaning of each event is the docstring of its class in `oracle.events`. The oracle interprets these events, and the
ranks run them.

After construction every rank holds rank 0's parameters and buffers. If an implementation claims so, this is true only
from the first forward after each construction on, and that forward is then the first event. With ``broadcast_buffers``
buffers become rank 0's again at the beginning of the first Backward and of each Backward that follows a synchronizing
one, as in torch's DDP. Other implementations broadcast buffers before each forward that follows a synchronizing one. A
program in which the two give different values is not well-formed.

Practice differs on two questions. An implementation claims its answer to each:

    AVERAGINGS    how the mean is taken
    UNUSED        the gradient of a parameter that no rank used stays "untouched", or becomes "zero"

A bucket cap counts the bytes of the gradients in one bucket. The unit in which an implementation takes its cap is in
the name of its constructor's argument. None, zero and -0.0 are told apart.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from lockstep.oracle import well_formed
from lockstep.oracle.caller import Caller, Differing
from lockstep.oracle.event import Event
from lockstep.oracle.events import EVENTS, Backward, Join, Replace, Step
from lockstep.oracle.events.backward import LOSSES
from lockstep.oracle.model import Buffer, Group, Hyperparameters, LossScale, Parameter
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, repr=False)
class Scenario(Setup):
    """One training program. Plain data: its repr evaluates back, and it has JSON both ways.

    ValueError, in one line that shows the value, for one that no training loop could have.
    """

    program: tuple[Event, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.standings  # noqa: B018  # the program is checked where this is made
        if self.only is not None:
            self._check_only(*self.only)
        self._check_caller()

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """The standing before each event, and after the last."""
        return well_formed.standings(self, self.program)

    @cached_property
    def samples(self) -> int:
        """Samples in a micro-batch, over all ranks: as many as ranks unless the program says otherwise."""
        return self.standings[-1].samples or self.world_size

    @cached_property
    def microbatches(self) -> tuple[Backward, ...]:
        """The Backward events, in the order of the program: micro-batch m is the m-th."""
        return tuple(event for _, event in self.events(Backward))

    def batch(self, place: int) -> int:
        """Count the micro-batches before the event of that place: of a Backward, its number."""
        return self.standings[place].batch

    def has(self, *kinds: type[Event]) -> bool:
        """True if there is an event of one of these kinds."""
        return any(isinstance(event, kinds) for event in self.program)

    def places(self, *kinds: type[Event]) -> list[int]:
        """The places of the events of these kinds."""
        return [place for place, event in enumerate(self.program) if isinstance(event, kinds)]

    def events(self, kind: type[E]) -> list[tuple[int, E]]:
        """The events of a kind, each with its place."""
        return [(place, event) for place, event in enumerate(self.program) if isinstance(event, kind)]

    def with_each(self, kind: type[E], change: Callable[[E], tuple[Event, ...]]) -> "Scenario":
        """The same with other events in the place of each event of a kind."""
        changed = (change(event) if isinstance(event, kind) else (event,) for event in self.program)
        return replace(self, program=tuple(itertools.chain.from_iterable(changed)))

    def order(self, microbatch: int, rank: int) -> tuple[int, ...]:
        """The order in which backward reaches the parameters on a rank: that of first use among its samples."""
        return self.microbatches[microbatch].order(rank, self.world_size)

    def stays_in_no_sync(self, place: int) -> bool:
        """True if the ``no_sync`` of a Backward at that place, or the outer one of a Raise, goes on after it."""
        match self.program[place : place + 2] if place >= 0 else ():
            case (here, Backward(together=True)):
                return here.holds_no_sync
        return False

    def gone(self, place: int) -> tuple[int, ...]:
        """The ranks that have run out of micro-batches, and do nothing, when the event of that place comes."""
        return self.standings[place + 1].gone or ()

    def overflowed(self, place: int) -> tuple[int, ...]:
        """The ranks on which gradients have overflowed that are still there when the event of that place comes."""
        return tuple(sorted(self.standings[place].overflowed))

    @cached_property
    def optimizers(self) -> tuple[tuple[int, ...], ...]:
        """The groups of each optimizer that the caller has: all have one, unless a Step is of some; empty ones none."""
        groups = range(len(self.groups) + 1)
        if all(event.groups is None for _, event in self.events(Step)):
            return (tuple(groups),)
        return tuple((number,) for number in groups if self.all_groups[number].parameters)

    def _check_only(self, batch: int, sample: int, parameter: int, element: int) -> None:
        """``only`` names a contribution that there is, and leaves no zeros whose sign depends on weights."""
        if self.probe != "linear":
            raise ValueError(f"only {self.only} takes the linear probe: others are not linear")
        if not (
            0 <= batch < len(self.microbatches)
            and 0 <= sample < self.samples
            and 0 <= parameter < len(self.parameters)
            and 0 <= element < self.parameters[parameter].count
        ):
            raise ValueError(f"only {self.only} is no contribution of this scenario")

    def _check_caller(self) -> None:
        """Check that the caller's habits are possible in this program."""
        if self.has(Join) and (self.roles or replace(self.caller, makes_optimizer="") != Caller()):
            raise ValueError(f"{self.caller!r} and roles {self.roles} take ranks that all stay: there is a Join")
        trained_later = any(not now.trained <= now.when_wrapped for now in self.standings)
        if self.caller.module_hooked and any(batch.loss != LOSSES[0] for batch in self.microbatches):
            raise ValueError(f"{self.caller!r} has a hook on what the model gives, which is not all of the loss")
        if self.caller.hooks and (trained_later or self.has(Replace)):
            raise ValueError(f"{self.caller!r} has no hooks on what is trained, or comes, after wrapping")

    def to_json(self) -> str:
        """The scenario as JSON."""
        data = asdict(self)
        data["program"] = [{"event": type(event).__name__, **asdict(event)} for event in self.program]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> "Scenario":
        """The scenario that `to_json` wrote."""
        data = tuples(json.loads(text))
        if not isinstance(data, dict) or not {"world_size", "parameters", "program"} <= data.keys():
            raise ValueError(f"a scenario has world_size, parameters and program, not {str(data)[:80]}")
        data["parameters"] = tuple(Parameter(**parameter) for parameter in data["parameters"])
        data["program"] = tuple(_event(**event) for event in data["program"])
        data["hyperparameters"] = Hyperparameters(**data.get("hyperparameters", {}))
        data["groups"] = tuple(
            Group(group["parameters"], Hyperparameters(**group["hyperparameters"])) for group in data.get("groups", ())
        )
        data["loss_scale"] = LossScale(**data["loss_scale"]) if data.get("loss_scale") else None
        data["caller"] = Caller(**data.get("caller", {}))
        data["differs"] = Differing(**data["differs"]) if data.get("differs") else None
        data["buffers"] = tuple(Buffer(**buffer) for buffer in data.get("buffers", ()))
        return cls(**data)


# What a scenario's repr consists of, so that it can be evaluated.
NAMES: dict[str, type] = {kind.__name__: kind for kind in (Scenario, Parameter, Buffer, Group, LossScale, Caller)}
NAMES |= {"Hyperparameters": Hyperparameters, "Differing": Differing, **EVENTS}


def _event(event: str, **values: Any) -> Event:
    if event not in EVENTS:
        raise ValueError(f"an event is one of {', '.join(EVENTS)}, not {event!r}")
    return EVENTS[event].from_json(values)


def tuples(data: Any) -> Any:
    """Replace lists from JSON by tuples, also inside; anything else stays as it is."""
    if isinstance(data, list):
        return tuple(tuples(item) for item in data)
    if isinstance(data, dict):
        return {key: tuples(value) for key, value in data.items()}
    return data
