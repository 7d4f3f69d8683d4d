"""What every event of a training program means. The oracle interprets these events and the ranks run them.

A scenario is a model (a tuple of parameters under a *probe*), the options of a data-parallel implementation and of the
caller's training loop, and a *program*: a tuple of events that every rank executes in order.

The probes make a scenario decide every gradient, so that no autograd is needed to say what must come out. With
``c[m, s, p]`` the coefficients of micro-batch m, sample s and parameter p (`oracle.fingerprint` chooses them):

    linear       loss(m, s) = sum over p of <c[m, s, p], p>            so the gradient *is* c
    quadratic    loss(m, s) = sum over p of <c[m, s, p], p * p> / 2    so the gradient is c * p: stale weights show

A tied parameter is another name of an earlier one: one tensor, whose gradient is the sum of those of its names, which
is stepped once and counts once in a norm.

Units are submodules, each with some of the parameters; the others are the root's own. The root's forward goes through
the parameters in reverse of the order in which backward is to reach them; those in a row that belong to one unit are
used in one call of it, so a unit may be called more than once. Parameters of units that are ``outside`` are read by the
root's forward, which does not call the unit for them. Layouts say how an initial tensor lies in memory. With
``replicas`` the ranks form so many groups of consecutive ranks, each of which holds the model once between them. With
``outsiders`` the ranks are a group, the ``members`` of a world of so many more, of which the others make the group with
them and take no part in anything else: its rank 0, and of two the one that comes after the first member, as data
parallelism leaves out ranks in between where tensors are parallel too. None of these changes any value.

The events:

    Backward   One micro-batch, forward and backward, both inside ``no_sync`` unless it synchronizes. Rank r of N holds
               the samples r*S/N .. (r+1)*S/N - 1 of the S samples; its loss is the mean of theirs, times the loss scale
               if there is one. A parameter that does not occur in a sample's order takes no part in it. Gradients add
               to those already there. Dividing by the number of micro-batches is the caller's business, so no event
               does it. One ``no_sync`` may hold several of them ``together``, and may be nested: leaving the inner one
               does not end the outer. Where the micro-batch overflows on a rank, its gradients there are infinite.
               Forward adds m*N + r + 1 to each buffer element. Where several ``forwards`` come before backward, every
               coefficient goes to one of them and is zero in the others; so does what is added to buffers, to the last.
               There is one backward then, of the sum of their losses, or one through each. Where several ``backwards``
               go through one forward, each adds its gradients.
    Finish     Follows each synchronizing Backward. After it the gradient of a parameter is, on every rank, the mean
               over ranks of the gradients that they had accumulated, a missing one counting as zero.
    Unscale    g <- g / scale. If a gradient is then not finite on some rank, all ranks skip the next Step.
    Clip       g <- g * min(1, max_norm / (norm + 1e-6)), norm the p-norm of all gradients together; p is 1, 2, 3 or
               inf. Each parameter's norm is taken in its dtype, then the norm of the norms in the widest, or all in a
               wider one; or each rank takes that of a part of its own first. Where Unscale has found a gradient that
               is not finite, norm and gradients are left open (0 * inf is NaN): the Step is skipped as ever, and
               before anything else reads gradients or adds to them they are dropped or set to zero.
    Step       A step of the optimizer (`oracle.optimizers`), with the hyper-parameters of the parameter's group; a
               parameter without a gradient stays as it is, and so do its state and step count. SGD by default:
               p <- p - learning_rate * gradient. Gradients stay; with Nesterov's momentum torch's foreach form adds to
               them, so a program that is compared drops them next. With a loss scale, Unscale comes first if it has not
               come since the last Step; and the scale is then halved after a skipped step, doubled after
               ``growth_interval`` others in a row. Where any Step names the ``groups`` that it is of, the caller has an
               optimizer for each group that has parameters: it steps those of these groups, or, where a Step names
               none, all, and whatever else is said of the optimizer goes for each. With masters, a 16-bit parameter has
               an fp32 copy, made from it at the start; the gradient is cast to fp32, the copy is stepped, and the
               parameter becomes the copy rounded to nearest even.
    ZeroGrad   Gradients are dropped (None), or set to zero where there are some. Of what has accumulated inside
               ``no_sync`` until then nothing is in any mean; zeros of it, which some ranks may have and others not, are
               synchronized before anything reads gradients.
    SetHyperparameters   The next Step uses these; state and step counts go on.
    Freeze     ``requires_grad`` is set, at a moment when there are no gradients, or when all are synchronized and
               the next event, ZeroGrad, drops them, those of frozen parameters too. A frozen parameter takes no part.
    Replace    The caller assigns new tensors in place of those of parameters, under all their names and in its
               optimizer, at a moment when there are no gradients. They have the same values and are trained if those
               were. Optimizer state and step counts of theirs begin afresh, and so do masters, from the new tensors.
    Write      The caller writes 0 - p in the place of p, for some parameters and on every rank, in place and past
               autograd, as weights are clipped, averaged in or loaded by hand. There are no masters, which would have
               to hear of it. Everything else goes on.
    SaveAndLoad          Each rank saves the state of model, optimizer and loss scale; all are built anew, with other
               initial values, wrapped, and loaded. Nothing changes, but that there are no gradients. From weights alone
               the optimizer, its hyper-parameters, masters (from the weights loaded) and loss scale begin afresh.
    Save       Each rank saves the state of model, optimizer and loss scale. Nothing changes.
    Load       What Save has saved last, since all was built, is loaded into the model and the optimizer that are there:
               all becomes what it was then, but for what is frozen, and there are no gradients. From weights alone the
               rest begins afresh, as in SaveAndLoad.
    Evaluate   A forward of all parameters, frozen ones too, that no backward follows: without autograd, or in torch's
               inference mode; in evaluation mode, unless without ``switch``; outside of ``no_sync``, unless it does not
               ``synchronize``. Nothing changes, and buffers are left alone.
    Join       From here to EndJoin ranks may run out of micro-batches: a Backward says which are ``gone``. Until
               EndJoin those do nothing but take part in the others' collectives, with zeros for the gradients that
               they have; the means divide by the number of all ranks, or of those that remain (``DIVISORS``).
    EndJoin    Every rank has run out. Parameters become, on every rank, those of the ranks that were the last to run
               out, and the caller drops all gradients.
    Raise      On one rank or all, a micro-batch of NaN in which every trained parameter takes part ends with an error
               of the caller's: in a ``no_sync`` block before forward, as Ctrl-C does; in forward, before it reads
               anything; in the module whose forward reads the parameter in the middle; in backward, before that in the
               middle; in the first parameter's gradient hook. Or an evaluation on all ranks ends so in a module. The
               caller catches it, puts the buffers back and goes on, inside the outer ``no_sync`` if the one that ended
               is ``nested``; once backward has begun all gradients are dropped, on every rank.

After construction every rank holds rank 0's parameters and buffers; or, where that is claimed, from the first forward
after each construction on, which then comes before anything else. With ``broadcast_buffers`` buffers become rank 0's
again at the beginning of the first Backward and of each that follows a synchronizing one (as torch's DDP does). Some
broadcast them before each forward that follows a synchronizing one: where that differs, a program is not well-formed.

Two things on which practice differs are named choices that an implementation claims, never silent preferences: how the
mean is taken (``AVERAGINGS``), and what a parameter gets that no rank used (``UNUSED``: its gradient stays "untouched",
or becomes "zero"). A bucket cap counts bytes here, over the gradients put into one bucket; in which unit an
implementation takes it, the name of its constructor's argument says. None, zero and -0.0 are told apart.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from lockstep.oracle.events import (
    DIVISORS,
    EVENTS,
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Event,
    Finish,
    Freeze,
    Hyperparameters,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Short,
    Step,
    Unscale,
    Write,
    ZeroGrad,
    ends_gradients,
)
from lockstep.oracle.model import DEFAULTS, LAYOUTS, Buffer, Group, LossScale, Parameter
from lockstep.oracle.well_formed import check

__all__ = [
    "AVERAGINGS",
    "CANCELLING",
    "DIVISORS",
    "EVENTS",
    "LAYOUTS",
    "MODES",
    "NAMES",
    "OPTIMIZERS",
    "PROBES",
    "SIGNS",
    "UNUSED",
    "WIRES",
    "Backward",
    "Buffer",
    "Clip",
    "EndJoin",
    "Evaluate",
    "Event",
    "Finish",
    "Freeze",
    "Group",
    "Hyperparameters",
    "Join",
    "Load",
    "LossScale",
    "Parameter",
    "Raise",
    "Replace",
    "Save",
    "SaveAndLoad",
    "Scenario",
    "SetHyperparameters",
    "Step",
    "Unscale",
    "Write",
    "ZeroGrad",
]

AVERAGINGS = ("sum then divide", "divide then sum", "multiply by reciprocal then sum")
UNUSED = ("untouched", "zero")
PROBES = ("linear", "quadratic")
SIGNS = ("positive", "mixed", "negative")
CANCELLING = "cancelling"
MODES = ("train", "eval")
WIRES = ("bfloat16", "float16")
OPTIMIZERS = ("SGD", "Adam", "AdamW")


@dataclass(frozen=True, repr=False)
class Scenario(Short):
    """One training program for ``world_size`` ranks. Plain data: its repr evaluates back, and it has JSON both ways.

    ``bucket_cap`` is in bytes (0: no two tensors share a bucket); None leaves it to the implementation.
    ``learning_rate`` is a power of two, so that steps can be exact; one of any size goes into ``hyperparameters``.
    ``only`` silences every contribution but one, given as
    (micro-batch, sample, parameter, element): by linearity, runs with one contribution at a time tell the coefficient
    of each in every gradient. ``sparse`` (i, n): the i-th of n runs that share the contributions out, for formats in
    which one run cannot hold all (`oracle.fingerprint`). ``hyperparameters`` that are None are torch's defaults, and 0
    for any weight decay; parameters in none of the ``groups`` form group 0, the others follow. ``units``: the
    parameters of each submodule; ``outside``: those of them that are read outside of it. ``signs``: those of the
    contributions, one of ``SIGNS``, or ``CANCELLING``: then micro-batches that follow one another inside ``no_sync``
    have, two by two, the same large number in them, the second with a minus, so that what has accumulated in between
    needs digits that the sum does not. ``mode``: that of the modules while they are trained, one of ``MODES``; in
    "eval", as for a fine-tuning without dropout and with the statistics there are, forwards leave buffers alone.
    ``wire``: the dtype in which gradients may travel, one of ``WIRES``, or "", their own; they fit it, so that it
    rounds nothing.
    """

    world_size: int
    parameters: tuple[Parameter, ...]
    program: tuple[Event, ...]
    probe: str = "linear"
    bucket_cap: int | None = None
    learning_rate: float = 0.5
    only: tuple[int, int, int, int] | None = None
    optimizer: str = "SGD"
    hyperparameters: Hyperparameters = DEFAULTS
    groups: tuple[Group, ...] = ()
    masters: bool = False
    loss_scale: LossScale | None = None
    buffers: tuple[Buffer, ...] = ()
    broadcast_buffers: bool = False
    sparse: tuple[int, int] = (0, 1)
    units: tuple[tuple[int, ...], ...] = ()
    outside: tuple[int, ...] = ()
    replicas: int = 1
    outsiders: int = 0
    signs: str = SIGNS[0]
    mode: str = MODES[0]
    wire: str = ""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("a probe", self.probe, PROBES),
            ("an optimizer", self.optimizer, OPTIMIZERS),
            ("the choice of signs", self.signs, (*SIGNS, CANCELLING)),
            ("the mode", self.mode, MODES),
        ):
            if value not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")
        if self.wire not in ("", *WIRES):
            raise ValueError(f"gradients travel in one of {', '.join(WIRES)}, or, '', in their own, not {self.wire!r}")
        check(self)

    @property
    def members(self) -> tuple[int, ...]:
        """By rank, which rank of the world that is."""
        outside = {number + min(number, self.world_size) for number in range(self.outsiders)}
        return tuple(rank for rank in range(self.world_size + self.outsiders) if rank not in outside)

    @cached_property
    def samples(self) -> int:
        """Samples in a micro-batch, over all ranks: as many as ranks unless the program says otherwise."""
        return next((len(event.orders) for event in self.program if isinstance(event, Backward)), self.world_size)

    @cached_property
    def microbatches(self) -> tuple[Backward, ...]:
        """The Backward events, in the order of the program: micro-batch m is the m-th."""
        return tuple(event for event in self.program if isinstance(event, Backward))

    def batch(self, place: int) -> int:
        """How many micro-batches come before the event of that place: of a Backward, its number."""
        return sum(isinstance(event, Backward) for event in self.program[:place])

    def has(self, *kinds: type[Event]) -> bool:
        """Whether there is an event of one of these kinds."""
        return any(isinstance(event, kinds) for event in self.program)

    def order(self, microbatch: int, rank: int) -> tuple[int, ...]:
        """The order in which backward reaches the parameters on a rank: that of first use among its samples."""
        per_rank = self.samples // self.world_size
        mine = self.microbatches[microbatch].orders[rank * per_rank : (rank + 1) * per_rank]
        return tuple(dict.fromkeys(parameter for order in mine for parameter in order))

    def stays_in_no_sync(self, place: int) -> bool:
        """Whether the ``no_sync`` of a Backward at that place, or the outer one of a Raise, goes on after it."""
        match self.program[place : place + 2] if place >= 0 else ():
            case (Backward(synchronize=False) | Raise(nested=True), Backward(together=True)):
                return True
        return False

    def gone(self, place: int) -> tuple[int, ...]:
        """The ranks that have run out of micro-batches, and do nothing, when the event of that place comes."""
        for event in self.program[place::-1]:
            if isinstance(event, (Join, EndJoin)):
                break
            if isinstance(event, Backward):
                return event.gone
        return ()

    def overflowed(self, place: int) -> tuple[int, ...]:
        """The ranks on which gradients have overflowed that are still there when the event of that place comes."""
        ranks: set[int] = set()
        batch = 0
        for event in self.program[:place]:
            match event:
                case Backward():
                    used = {rank: self.order(batch, rank) for rank in event.overflow}
                    ranks |= {rank for rank in used if any(self.parameters[each].count for each in used[rank])}
                    batch += 1
                case _ if ends_gradients(event):
                    ranks.clear()
        return tuple(sorted(ranks))

    def tensor(self, parameter: int) -> int:
        """The parameter that a parameter is a name of: itself, unless it is tied."""
        tied = self.parameters[parameter].tied
        return parameter if tied is None else tied

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """The parameters that are no other's name."""
        return tuple(index for index, parameter in enumerate(self.parameters) if parameter.tied is None)

    def names(self, *tensors: int) -> list[int]:
        """The parameters that are names of these tensors, themselves included."""
        return [index for index in range(len(self.parameters)) if self.tensor(index) in tensors]

    def trained_after(self, event: Freeze, before: set[int]) -> set[int]:
        """Which parameters are trained after it, under all their names, of those that were before."""
        names = {*self.names(*event.parameters)}
        return before - names if event.frozen else before | names

    def unit(self, parameter: int) -> int | None:
        """The unit that a parameter belongs to; None: it is the root's own."""
        return next((number for number, unit in enumerate(self.units) if parameter in unit), None)

    def reader(self, parameter: int) -> int | None:
        """The unit whose forward reads a parameter; None: the root's does."""
        return None if parameter in self.outside else self.unit(parameter)

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """Group 0, the parameters that are in none of ``groups``, and then those; tensors only, no other names."""
        elsewhere = {parameter for group in self.groups for parameter in group.parameters}
        return (Group(tuple(index for index in self.tensors if index not in elsewhere)), *self.groups)

    @cached_property
    def optimizers(self) -> tuple[tuple[int, ...], ...]:
        """The groups of each optimizer that the caller has: all have one, unless a Step is of some; empty ones none."""
        groups = range(len(self.groups) + 1)
        if all(event.groups is None for event in self.program if isinstance(event, Step)):
            return (tuple(groups),)
        return tuple((number,) for number in groups if self.all_groups[number].parameters)

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
        data["buffers"] = tuple(Buffer(**buffer) for buffer in data.get("buffers", ()))
        return cls(**data)


# What a scenario's repr consists of, so that it can be evaluated.
NAMES: dict[str, type] = {kind.__name__: kind for kind in (Scenario, Parameter, Buffer, Group, LossScale)}
NAMES |= {"Hyperparameters": Hyperparameters, **EVENTS}


def _event(event: str, **values: Any) -> Event:
    if event not in EVENTS:
        raise ValueError(f"an event is one of {', '.join(EVENTS)}, not {event!r}")
    if event == "SetHyperparameters":
        values["values"] = Hyperparameters(**values["values"])
    return EVENTS[event](**values)


def tuples(data: Any) -> Any:
    """What JSON holds with tuples in the place of its lists; anything else stays as it is."""
    if isinstance(data, list):
        return tuple(tuples(item) for item in data)
    if isinstance(data, dict):
        return {key: tuples(value) for key, value in data.items()}
    return data
