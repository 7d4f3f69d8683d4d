"""The contract of every world: hand over the name of a function and JSON, get back one report per rank."""

import dis
import importlib
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=[>,])")  # of an object, as Python prints it: another one in each run
_LONGEST = 100_000  # characters of an exception's message and of its traceback

# Between two ranks; everything else is between all members of a group.
MESSAGES = ("send", "recv")
# The group of all ranks.
DEFAULT = "default"
# The root of these is where the data goes.
_TO_ROOT = ("reduce", "gather", "send")


@dataclass(frozen=True)
class Collective:
    """One collective, or a send or receive, as one rank asked for it.

        reduction       for a sparse tensor with its shape; ``count`` is then that of all elements
        count           elements that this rank puts in; for a scatter and a receive, elements that it takes out
        root            a global rank: the root, or the peer of a send or receive; -1: there is none
        gives, takes    elements for and from each member, if these differ
        tag             of a send or receive
        sent, got       this rank's input and output, if contents were asked for. Only the simulated world has outputs,
                        of collectives that the rank has waited for

    Members of a group must agree on all of these except ``sent`` and ``got``. In collectives that gather, and in
    all-to-all, each rank has counts of its own.
    """

    operation: str
    reduction: str
    dtype: str
    count: int
    root: int
    group: str
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    tag: int = 0
    sent: Array | None = field(default=None, compare=False, repr=False)
    got: Array | None = field(default=None, compare=False, repr=False)

    def agreed(self) -> "Collective":
        """The part of the call on which all members of the group must agree: without each rank's own counts."""
        if self.operation == "all_to_all":
            return replace(self, count=0, gives=(), takes=())
        return replace(self, count=0) if self.operation == "all_gather" and self.takes else self

    def numbered(self, place: int) -> str:
        """The collective and its number in its group, from 1. A message is numbered among its rank's messages in the
        group.
        """
        which = "its message {} in" if self.operation in MESSAGES else "collective {} of"
        return f"{self}, {which.format(place)} the {self.group} group"

    def __str__(self) -> str:
        inside = [self.reduction]
        if self.root >= 0:
            inside.append(f"{'to' if self.operation in _TO_ROOT else 'from'} rank {self.root}")
        elif self.operation == "recv":
            inside.append("from any rank")
        if self.dtype:
            inside.append(f"{self.count} x {self.dtype}")
        for word in ("gives", "takes"):
            if sizes := getattr(self, word):
                inside.append(f"{word} {'+'.join(map(str, sizes))}")
        inside.append(f"tag {self.tag}" if self.tag else "")
        return f"{self.operation}({', '.join(part for part in inside if part)})"


def group_label(members: Sequence[int], name: str) -> str:
    """The label of a group of these global ranks in a `Collective`: the same on each of its ranks."""
    return f"ranks {','.join(map(str, members))}, {name}"


def members_of(group: str, world_size: int) -> tuple[int, ...]:
    """The global ranks of a group, read from its label."""
    if group == DEFAULT:
        return tuple(range(world_size))
    ranks, _, _ = group.removeprefix("ranks ").partition(", ")
    return tuple(map(int, ranks.split(",")))


@dataclass(frozen=True)
class RankError:
    """The reason why a rank has no result: the kind of failure, one line for people, and further notes.

    kind          "raised", "mismatch", "deadlock", "timeout", "died": caused by the implementation on that rank.
                  "abandoned": the rank was still waiting for others when the example was ended because of them. "not
                  runnable": this world cannot run the implementation, which is not held against it
    details       a traceback, stacks, or the end of the output
    notes         those of an exception
    deliberate    a ``raise`` statement raised it; no operation went wrong
    """

    kind: str
    message: str
    details: str = ""
    notes: tuple[str, ...] = ()
    deliberate: bool = False


# How a rank can misuse a collective or message in flight, which a real backend punishes only now and then.
HAZARDS = {
    "changed": "its tensor was changed while it was in flight",
    "used": "its result was used before it was there",
    "shared": "another collective or message was launched on its tensor while it was in flight",
    "dropped": "its handle was dropped without a wait",
}


@dataclass(frozen=True)
class Hazard:
    """A misuse of a collective or message in flight: a word of ``HAZARDS``, and the operation that showed it.

    ``place``: see `Collective.numbered`. ``launched`` and ``line`` are lines of the user's code, as "file:12, in
    function": where the collective was launched, and where this was done; empty where that is not known.
    """

    kind: str
    rank: int
    collective: Collective
    place: int
    by: str
    launched: str
    line: str = ""

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return (
            f"rank {self.rank}: {self.collective.numbered(self.place)}, launched at "
            f"{self.launched or 'an unknown line'}: {HAZARDS[self.kind]}, by {self.by}{where}"
        )


@dataclass(frozen=True)
class Passage:
    """The times at which a collective passed through one rank.

    The simulated world counts the events of the run, on any rank, from 1. Real processes give nanoseconds of the host's
    clock.

        completed         the last member had launched it; on real processes: this rank's part was done
        waited            this rank first knew that it was done; unknown on real processes. None: never
        polled            the rank knew it from a poll, before any wait
        bytes             this rank's input
        sent, messages    the bytes and messages that this rank would send on a ring
    """

    collective: Collective
    members: tuple[int, ...]  # global ranks
    bytes: int
    launched: int
    completed: int | None
    waited: int | None
    sent: int
    messages: int
    polled: bool = False


@dataclass(frozen=True)
class RankReport:
    """The report of one rank: the result of its function, or an error; and the collectives that it issued, in order.

    left        threads and processes that the function left behind, in words
    timeline    the same collectives without messages, if the job asked for it
    hazards     those seen under an `Asynchrony`; on the simulated world only
    """

    result: Mapping[str, Any] | None
    error: RankError | None
    collectives: tuple[Collective, ...] = ()
    left: tuple[str, ...] = ()
    timeline: tuple[Passage, ...] = ()
    hazards: tuple[Hazard, ...] = ()


Outcome = tuple[RankReport, ...]


def errors_of(outcome: Outcome) -> dict[int, RankError]:
    """The errors by rank."""
    return {rank: report.error for rank, report in enumerate(outcome) if report.error is not None}


def to_blame(outcome: Outcome) -> dict[int, RankError]:
    """The errors by rank, without ranks that only waited for one that failed, if others failed."""
    errors = errors_of(outcome)
    return {rank: error for rank, error in errors.items() if error.kind != "abandoned"} or errors


def also_lost(outcome: Outcome, how: str) -> Outcome:
    """The outcome, with a process that has ended between two examples reported as left behind. ``how``: its end; empty:
    none has.
    """
    if not how:
        return outcome
    first, *others = outcome
    return (replace(first, left=(*first.left, f"a process that {how} after its example")), *others)


# An order of reduction. A tree is a member of the group, or a pair of trees that one addition combines: ((2, 1), 0) is
# (x[2] + x[1]) + x[0]. An order has (lo, hi, tree) for the elements lo <= i < hi, in turn, of the whole.
Tree = int | Sequence[Any]
Order = Sequence[tuple[int, int, Tree]]
OrderOf = Callable[[int, int, int], Order]  # of so many elements, of so many bytes each, on so many members

MOMENTS_TO_READ = ("launch", "completion", "drawn")
MOMENTS_TO_WRITE = ("completion", "drawn", "wait")


@dataclass(frozen=True)
class Asynchrony:
    """The moments at which simulated collectives, and messages, read their inputs and write their outputs.

    Until an output is written, it holds poison (NaN, or a conspicuous integer), unless it is the input too. Every use
    of a tensor in flight becomes a `Hazard` of the report.

        reads    "launch"; or "completion": the last member has launched it, or a message's other end is there
        writes   "completion"; or "wait": the rank waits for it, or polls with success
        "drawn"  takes the next of ``draws``, over and over. To read, an odd number means completion. To write, 0 means
                 wait, and d the d-th moment from completion on: that, and whenever the rank launches, waits or polls.
    """

    reads: str = "launch"
    writes: str = "wait"
    draws: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, moment, moments in (
            ("reads", self.reads, MOMENTS_TO_READ),
            ("writes", self.writes, MOMENTS_TO_WRITE),
        ):
            if moment not in moments:
                raise ValueError(f"{name}={moment!r}: it must be one of {', '.join(moments)}")
        if "drawn" in (self.reads, self.writes) and not self.draws:
            raise ValueError("draws=() is empty: what is drawn needs numbers to draw")
        if any(draw < 0 for draw in self.draws):
            raise ValueError(f"draws={self.draws}: they must be 0 or more")


@dataclass(frozen=True)
class Job:
    """One example: ``function`` ("module:name") is called on every rank as ``function(payload, rank, world_size)``.

    The function takes JSON text and returns a mapping of plain data and NumPy arrays.

        contents       ask for copies of the inputs and outputs of every collective
        limit          seconds that this example may take, if not the world's limit
        timeline       ask for the timelines of the reports

    The rest is for the simulated world:

        at_once        collectives block and deliver when they are launched, so that nothing can race. Messages cannot:
                       their other end may come later
        asynchrony     other moments at which collectives read and write
        order          the order in which reductions combine the members' values; None: from member 0 upwards. A job is
                       pickled, so it is a function of a module or a `functools.partial` of one
        accumulator    the dtype in which floating-point values are combined before they are rounded to their own;
                       empty: they are rounded at every hop
        own_state      global variables and class attributes of the implementation are kept apart by rank
                       (`worlds.sim.possessions`)
    """

    function: str
    payload: str
    world_size: int
    contents: bool = False
    at_once: bool = False
    limit: float | None = None
    asynchrony: Asynchrony | None = None
    timeline: bool = False
    order: OrderOf | None = None
    accumulator: str = ""
    own_state: bool = False


def raised(exception: BaseException) -> RankError:
    """The report of an exception, SystemExit too, that the function raised on a rank. Messages name no addresses."""
    text = "".join(traceback.format_exception(exception))
    try:
        message = f"{type(exception).__name__}: {exception}"
    except BaseException as another:  # SystemExit too: this is the function's own code
        message = f"{type(exception).__name__}, whose message cannot be had: {type(another).__name__}"
    notes = getattr(exception, "__notes__", ())
    notes = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    message, *said = (_ADDRESS.sub("", words) for words in (message, *notes))
    return RankError("raised", message[:_LONGEST], text[:_LONGEST], tuple(said), _by_a_statement(exception))


def _by_a_statement(exception: BaseException) -> bool:
    """True if it comes from a ``raise`` (or ``assert``) in Python code, not out of a call or another operation."""
    place = exception.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"


RankFunction = Callable[[str, int, int], Mapping[str, Any]]


def resolve(name: str) -> RankFunction:
    """The function that "module:name" names. Called where the ranks are, so that only there it is imported."""
    module, _, attribute = name.partition(":")
    function: RankFunction = getattr(importlib.import_module(module), attribute)
    return function


class World(Protocol):
    """A place to run ranks.

    name      its name in ``--world``
    device    "cpu" or "cuda": where ranks put tensors
    limit     seconds that one example may take
    ranks     the most ranks that it can have; None: any number
    """

    name: str
    device: str
    limit: float
    ranks: int | None

    def run(self, job: Job) -> Outcome:
        """Run the job on ranks 0 .. world_size - 1. No act of the function makes it raise."""

    def close(self) -> None:
        """Ends every process that the world started."""
