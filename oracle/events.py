"""The events of a program as plain data. What each of them means is said by `oracle.program`."""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import get_args


class Short:
    """A repr that leaves out what has its default, and still evaluates back."""

    def __repr__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            told = 'float("inf")' if value == float("inf") else repr(value)
            if item.default is MISSING:
                shown.append(told)
            elif value != item.default:
                shown.append(f"{item.name}={told}")
        return f"{type(self).__name__}({', '.join(shown)})"


def is_whole(number: object, least: int) -> bool:
    """Whether it is an integer of at least that. True is not one."""
    return type(number) is int and number >= least


RAISES = ("no_sync", "forward", "module", "backward", "hook", "evaluation")
NORMS = (1.0, 2.0, 3.0, float("inf"))
DIVISORS = ("world size", "remaining ranks")


@dataclass(frozen=True, repr=False)
class Hyperparameters(Short):
    """Options of an optimizer, named as in torch but for ``learning_rate``; None: as it was."""

    learning_rate: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    maximize: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None


@dataclass(frozen=True, repr=False)
class Backward(Short):
    """One micro-batch. ``orders[s]``: the parameters that sample s uses, in the order in which backward gets there.

    ``nested``: inside ``no_sync``, a second ``no_sync`` is entered and left before forward runs. ``together``: the
    ``no_sync`` of the micro-batch right before, if that was inside one, or the outer one, if an error has just ended an
    inner one, has not ended yet. ``overflow``: the ranks on which every gradient of this micro-batch is infinite.
    ``gone``: those that have run out of micro-batches. ``forwards``: how many come before backward. They share the
    micro-batch's coefficients out, so that the sum of their losses has the gradients that one alone would give.
    ``backwards``: one, of that sum; or as many as there are forwards, one through each; or, where there is one forward,
    any number through it, the graph being retained, and each of them counts.
    """

    orders: tuple[tuple[int, ...], ...]
    synchronize: bool = True
    nested: bool = False
    overflow: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    forwards: int = 1
    together: bool = False
    backwards: int = 1

    def __post_init__(self) -> None:
        if not is_whole(self.forwards, 1):
            raise ValueError(f"a backward follows at least one forward, not {self.forwards!r}")
        if not is_whole(self.backwards, 1):
            raise ValueError(f"there is at least one backward, not {self.backwards!r}")
        if self.forwards > 1 and self.backwards not in (1, self.forwards):
            raise ValueError(f"{self.forwards} forwards have one backward together or one each, not {self.backwards}")
        if self.nested and self.synchronize:
            raise ValueError("nested=True nests no_sync, and a Backward that synchronizes is not inside any")
        if self.together and self.synchronize:
            raise ValueError("together=True stays in no_sync, and a Backward that synchronizes is not inside any")

    @property
    def passes(self) -> int:
        """How often backward comes through each forward."""
        return self.backwards if self.forwards == 1 else 1


@dataclass(frozen=True, repr=False)
class Finish(Short):
    """The end of a synchronization: gradients are final."""


@dataclass(frozen=True, repr=False)
class Unscale(Short):
    """Gradients are divided by the loss scale."""


@dataclass(frozen=True, repr=False)
class Clip(Short):
    """Gradients are clipped by their global norm; none is too large where ``max_norm`` is inf."""

    max_norm: float
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        if not self.max_norm >= 2.0**-126:
            raise ValueError(f"a largest norm is at least 2**-126, not {self.max_norm}")
        if self.norm_type not in NORMS:
            raise ValueError(f"a norm's type is one of {', '.join(map(str, NORMS))}, not {self.norm_type}")


@dataclass(frozen=True, repr=False)
class Step(Short):
    """One optimizer step. ``groups``: those of which it is, by number, in this order; None: of all."""

    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and len({*self.groups}) < max(1, len(self.groups)):
            raise ValueError(f"a step is of one group or more, each named once, not of {self.groups}")


@dataclass(frozen=True, repr=False)
class ZeroGrad(Short):
    """Gradients become None, or zero where there are some."""

    set_to_none: bool = True


@dataclass(frozen=True, repr=False)
class SetHyperparameters(Short):
    """Hyper-parameters change for one group of parameters, or, without ``group``, for all."""

    values: Hyperparameters
    group: int | None = None


@dataclass(frozen=True, repr=False)
class Freeze(Short):
    """Parameters are trained no longer, or, with ``frozen`` false, again."""

    parameters: tuple[int, ...]
    frozen: bool = True

    def after(self, before: set[int]) -> set[int]:
        """Which tensors are frozen after it, of those that were before."""
        return before | {*self.parameters} if self.frozen else before - {*self.parameters}


@dataclass(frozen=True, repr=False)
class Replace(Short):
    """New tensors take the place of those of parameters, with the same values."""

    parameters: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Write(Short):
    """The caller writes into tensors of the model: each of their elements becomes its negative."""

    parameters: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class SaveAndLoad(Short):
    """Saved, built anew and loaded; without ``optimizer`` the weights alone."""

    optimizer: bool = True


@dataclass(frozen=True, repr=False)
class Save(Short):
    """Saved, for a later `Load`."""


@dataclass(frozen=True, repr=False)
class Load(Short):
    """What `Save` has saved last is loaded into what is there; without ``optimizer`` the weights alone."""

    optimizer: bool = True


@dataclass(frozen=True, repr=False)
class Evaluate(Short):
    """A forward of all parameters on every rank that no backward follows: without autograd, in evaluation mode.

    ``inference``: in torch's inference mode, whose tensors no autograd ever takes. Without ``switch`` modules stay in
    the mode in which they train; without ``synchronize`` it is inside ``no_sync``. So are losses only measured.
    """

    inference: bool = False
    switch: bool = True
    synchronize: bool = True


@dataclass(frozen=True, repr=False)
class Join(Short):
    """From here on ranks may run out of micro-batches. ``divide_by``: what means divide by, one of ``DIVISORS``."""

    divide_by: str = DIVISORS[0]

    def __post_init__(self) -> None:
        if self.divide_by not in DIVISORS:
            raise ValueError(f"a mean divides by one of {', '.join(map(repr, DIVISORS))}, not by {self.divide_by!r}")


@dataclass(frozen=True, repr=False)
class EndJoin(Short):
    """All ranks have run out of micro-batches; from here on all take part again."""


@dataclass(frozen=True, repr=False)
class Raise(Short):
    """The caller's own error ends a micro-batch on one rank, or, without ``rank``, on all; the caller catches it.

    ``nested``: it ends a ``no_sync`` inside another, which every rank has entered and in which the caller catches it.
    """

    where: str
    rank: int | None = None
    synchronize: bool = False
    nested: bool = False

    def __post_init__(self) -> None:
        if self.where not in RAISES:
            raise ValueError(f"an error is raised in one of {', '.join(RAISES)}, not in {self.where!r}")
        if self.where == "no_sync" and self.synchronize:
            raise ValueError("an error raised in no_sync is not one in a micro-batch that synchronizes")
        if self.nested and self.synchronize:
            raise ValueError("nested=True nests no_sync, and a Raise that synchronizes is not inside any")
        if self.where == "evaluation" and self.rank is not None:
            raise ValueError(f"every rank evaluates, and not rank {self.rank} alone: name no rank")
        if self.where in ("backward", "hook") and self.synchronize and self.rank is not None:
            raise ValueError(f"a backward that synchronizes cannot end on rank {self.rank} alone: name no rank")

    @property
    def drops_gradients(self) -> bool:
        """Whether backward had begun: then the caller drops all gradients, on every rank."""
        return self.where in ("backward", "hook")


Event = (
    Backward
    | Finish
    | Unscale
    | Clip
    | Step
    | ZeroGrad
    | SetHyperparameters
    | Freeze
    | Replace
    | Write
    | SaveAndLoad
    | Save
    | Load
    | Evaluate
    | Join
    | EndJoin
    | Raise
)
EVENTS: dict[str, type[Event]] = {event.__name__: event for event in get_args(Event)}


def ends_gradients(event: Event) -> bool:
    """Whether those that were there are there no more, on any rank: they are None or zero now."""
    dropped = isinstance(event, Raise) and event.drops_gradients
    return dropped or isinstance(event, ZeroGrad | SaveAndLoad | Load | EndJoin)


def gradients_there(program: Iterable[Event]) -> Iterator[bool]:
    """Before each event, whether there may be gradients, be they zeros: a micro-batch has come since they were None."""
    there = False
    for event in program:
        yield there
        dropped = ends_gradients(event) and event != ZeroGrad(set_to_none=False)
        there = isinstance(event, Backward) or (there and not dropped)
