"""The contract of every world: hand over the name of a function and JSON, get back one report per rank."""

import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

# How a rank can fail. All but the last are the implementation's own doing on that rank; "abandoned" means that the rank
# was still waiting for others when the example was ended because of them.
FAILURES = ("raised", "mismatch", "deadlock", "timeout", "died", "abandoned")


# Between two ranks; everything else is between all members of a group.
MESSAGES = ("send", "recv")
# The root of these is where the data goes.
_TO_ROOT = ("reduce", "gather", "send")


@dataclass(frozen=True)
class Collective:
    """One collective, or a send or receive, as one rank asked for it.

    ``count``: the number of elements that this rank puts in; for a scatter and a receive, that it takes out. ``root``:
    a global rank, the peer of a send or receive; -1 where there is none. ``gives`` and ``takes``: elements for and from
    each member, where those are not all the same. ``tag``: of a send or receive. Members of a group must agree on
    everything but what they ``sent`` (filled in where contents were asked for); of what all gather, and of all-to-all,
    the counts are each rank's own.
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


@dataclass(frozen=True)
class RankError:
    """Why a rank has no result: a word of ``FAILURES``, one line for people, and what else is known.

    ``details``: a traceback, stacks, or the end of what was printed; ``notes``: those that an exception carried.
    """

    kind: str
    message: str
    details: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankReport:
    """What one rank gave back: what its function returned, or an error; and the collectives it issued, in order.

    ``left``: threads and processes that the function left behind, in words.
    """

    result: Mapping[str, Any] | None
    error: RankError | None
    collectives: tuple[Collective, ...] = ()
    left: tuple[str, ...] = ()


Outcome = tuple[RankReport, ...]


@dataclass(frozen=True)
class Job:
    """One example: ``function`` ("module:name") is called on every rank as ``function(payload, rank, world_size)``.

    The function takes JSON text and returns a mapping of plain data and NumPy arrays. ``contents`` asks for copies of
    what went into every collective. ``at_once``: on the simulated world, collectives block and deliver when they are
    launched, so that nothing can race. ``limit``: seconds that this example may take, where not the world's own.
    """

    function: str
    payload: str
    world_size: int
    contents: bool = False
    at_once: bool = False
    limit: float | None = None


def raised(exception: BaseException) -> RankError:
    """The report of an exception, SystemExit too, that the function raised on a rank."""
    text = "".join(traceback.format_exception(exception))
    message = f"{type(exception).__name__}: {exception}"
    return RankError("raised", message, text, tuple(getattr(exception, "__notes__", ())))


RankFunction = Callable[[str, int, int], Mapping[str, Any]]


def resolve(name: str) -> RankFunction:
    """The function that "module:name" names. Called where the ranks are, so that only there it is imported."""
    module, _, attribute = name.partition(":")
    function: RankFunction = getattr(importlib.import_module(module), attribute)
    return function


def most_ranks(world: "World") -> int | None:
    """How many ranks the world can have; None: as many as one asks for."""
    ranks: int | None = getattr(world, "ranks", None)
    return ranks


class World(Protocol):
    """Somewhere to run ranks. ``name`` is what ``--world`` calls it; ``limit``: seconds that one example may take."""

    name: str
    limit: float  # a world that cannot have as many ranks as it is asked for says so in ``ranks`` (see `most_ranks`)

    def run(self, job: Job) -> Outcome:
        """Runs the job on ranks 0 .. world_size - 1. Never raises because of what the function does."""

    def close(self) -> None:
        """Ends every process that the world started."""
