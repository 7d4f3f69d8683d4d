"""The contract of every world: hand over the name of a function and JSON, get back one report per rank."""

import dis
import importlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

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

    ``reduction``: of a sparse tensor with its shape, of which ``count`` is that of all elements. ``count``: the number
    of elements that this rank puts in; for a scatter and a receive, that it takes out. ``root``: a global rank, the
    peer of a send or receive; -1 where there is none. ``gives`` and ``takes``: elements for and from each member, where
    those are not all the same. ``tag``: of a send or receive. ``sent`` and ``got``: what this rank put in, and what
    came out for it, where contents were asked for; the latter on the simulated world alone, of what the rank has waited
    for. On all but these two members of a group must agree; of what all gather, and of all-to-all, the counts are each
    rank's own.
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
        """The collective, and which of its group's it is, from 1; of a message, which of its rank's in the group."""
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
    """The global ranks of a group, which its label tells."""
    if group == DEFAULT:
        return tuple(range(world_size))
    ranks, _, _ = group.removeprefix("ranks ").partition(", ")
    return tuple(map(int, ranks.split(",")))


@dataclass(frozen=True)
class RankError:
    """The reason why a rank has no result: the kind of failure, one line for people, and further notes.

    ``kind``: "raised", "mismatch", "deadlock", "timeout" or "died" are the implementation's own doing on that rank;
    "abandoned": it was still waiting for others when the example was ended because of them; "not runnable": this world
    cannot run what the implementation does, which says nothing against it.
    ``details``: a traceback, stacks, or the end of what was printed; ``notes``: those that an exception carried.
    ``deliberate``: a ``raise`` statement raised it, and no operation that went wrong.
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
    """A collective's way through one rank. On the simulated world times count what took place in the run, on any rank,
    from 1; on real processes they are nanoseconds of the host's clock.

    ``completed``: when the last member had launched it, of real processes when this rank's part was done; ``waited``:
    when this rank first knew that it was done, which real processes do not tell. None: never. ``polled``: it knew it
    from a look, before any wait. ``bytes`` is what this rank puts in; ``sent`` and ``messages`` what it would send on a
    ring.
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

    ``left``: threads and processes that the function left behind, in words. ``timeline`` has the same collectives, but
    for messages, where the job asked for it. ``hazards``: what was seen where it had an `Asynchrony`, on the simulated
    world only.
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
    """The same without ranks that waited in vain for one that failed, which are not the story, if others did."""
    errors = errors_of(outcome)
    return {rank: error for rank, error in errors.items() if error.kind != "abandoned"} or errors


def also_lost(outcome: Outcome, how: str) -> Outcome:
    """The outcome, with a process that has ended between two examples told as left behind. ``how``: empty: none has."""
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

    Until its output is written, what is not input too holds poison (NaN, or a conspicuous integer). Every use of a
    tensor in flight becomes a `Hazard` of the report.

        reads    "launch", or "completion": when the last member has launched it, or a message's other end is there
        writes   "completion", or "wait": when the rank waits for it, or polls with success
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

    The function takes JSON text and returns a mapping of plain data and NumPy arrays. ``contents`` asks for copies of
    what went into every collective and came out of it. ``limit``: seconds that this example may take, where not the
    world's own.

    ``timeline`` asks for the reports'.

    The rest is for the simulated world. ``at_once``: collectives block and deliver when they are launched, so that
    nothing can race (messages cannot: their other end may come later); ``asynchrony``: when they read and write
    otherwise. ``order`` gives the order in which reductions combine the members'
    values (None: from member 0 upwards); like all of a job it is pickled, so it is a function of a module or a
    `functools.partial` of one. ``accumulator``: the dtype in which floating-point values are combined before they are
    rounded to their own (empty: they are rounded at every hop). ``own_state``: global variables and class attributes of
    what is under test are kept apart by rank (`worlds.sim.possessions`).
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
    """The report of an exception, SystemExit too, that the function raised on a rank."""
    text = "".join(traceback.format_exception(exception))
    try:
        message = f"{type(exception).__name__}: {exception}"
    except BaseException as another:  # SystemExit too: this is the function's own code
        message = f"{type(exception).__name__}, whose message cannot be had: {type(another).__name__}"
    notes = getattr(exception, "__notes__", ())
    notes = tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ()
    return RankError("raised", message[:_LONGEST], text[:_LONGEST], notes, _by_a_statement(exception))


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
    """Somewhere to run ranks. ``name`` is what ``--world`` calls it; ``device``, "cpu" or "cuda": where ranks put
    tensors; ``limit``: seconds that one example may take; ``ranks``: how many it can have, None: as many as one likes.
    """

    name: str
    device: str
    limit: float
    ranks: int | None

    def run(self, job: Job) -> Outcome:
        """Runs the job on ranks 0 .. world_size - 1. Never raises because of what the function does."""

    def close(self) -> None:
        """Ends every process that the world started."""
