"""A training loop while it is drawn: the kinds of its phases, and what several events need to write themselves.

Every micro-batch ends up synchronized. Each phase writes its events, and before them the events that these take.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Any

from lockstep.oracle.events import Backward, Event, Finish, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.properties.claims import Claims
from lockstep.properties.events.caller import TrainingOptions
from lockstep.properties.events.claimed import Claimed, always

# Why a kind is apart that laws with any features of a program draw often enough (`properties.strategies.combined`).
SELDOM = "a program has few phases, and each kind more leaves less room for those that every law is about"


def _nothing(claims: Claims) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class RankSeed:
    """The draw for one rank: the number of its order, and the set of parameters absent there as bits. ``idle``: it uses
    none in about half of the micro-batches.
    """

    order: int
    absent: int
    idle: bool = False


@dataclass(frozen=True)
class Phase:
    """The draw for one event. ``twist`` and ``shift`` tell a micro-batch's orders and absences from others', and
    which form any other event has.
    """

    kind: "Kind"
    twist: int = 0
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of phases, and how the loop writes one: nothing, where it cannot have it.

    The general draw has it as ``often`` as that if it is ``claimed``, or not at all, for the reason given in ``apart``.
    """

    name: str
    write: Callable[["Loop", Phase], None]
    claimed: Claimed = always
    often: int = 1  # what is drawn more than once keeps its place in the draw where it is not claimed
    apart: str = ""
    takes: tuple["Kind", ...] = ()  # what it writes first, which must be claimed too
    forward: bool = False  # whether it begins with a forward on every rank
    while_joined: bool = False  # whether it goes on while ranks run out of micro-batches; anything else ends that
    options: tuple[str, ...] = ()  # of a scenario, which it takes
    rules_out: Callable[[Claims], tuple[str, ...]] = _nothing  # options of a scenario that do not go with it

    def may_be_drawn(self, claims: Claims) -> bool:
        """True if everything that it takes is claimed."""
        return self.claimed(claims) and all(each.may_be_drawn(claims) for each in self.takes)


class Loop:
    """The events so far, and what holds after them. ``clips_at``: the places of Clip events whose maximum is still to
    become the norm.
    """

    def __init__(
        self,
        claims: Claims,
        ranks: Sequence[RankSeed],
        model: tuple[Parameter, ...],
        caller: TrainingOptions,
        exact: bool,
        broadcasts: bool,
    ) -> None:
        self.claims, self.ranks, self.model, self.caller = claims, ranks, model, caller
        self.exact, self.broadcasts = exact, broadcasts
        self.trained = tuple(index for index, parameter in enumerate(model) if parameter.trainable)
        self.tensors = tuple(index for index, parameter in enumerate(model) if parameter.tied is None)
        self.when_wrapped = set(self.trained)
        self.events: list[Event] = []
        self.built_at = 0  # how many events had come when everything was built
        self.clips_at: list[int] = []
        self.local = self.gradients = self.averages = self.infinite = self.unscaled = False
        self.kept = False  # whether something was saved since all was built
        self.gone: tuple[int, ...] | None = None  # the ranks that have run out of micro-batches; None: nobody may

    def tensor(self, phase: Phase) -> int:
        """The tensor that an event is about: the last, unless a number is drawn."""
        return self.tensors[-1 - phase.shift % len(self.tensors)]

    def backward(self, phase: Phase, synchronize: bool = True, overflow: bool = False, **more: Any) -> None:
        """One micro-batch. ``more``: what else is unusual about it."""
        # Ranks that are gone have no average any more: who adds the mean of what is new to it has another than who adds
        # it first.
        late = str(more.get("meanwhile", "")).endswith(" gradients")  # it zeroes them itself
        if late:
            self.averages = self.infinite = False
        if self.averages and (self.gone is not None or not self.claims.adds_to_averages):
            self.zero()
        gone = self.gone or ()
        orders = tuple(
            () if number in gone else order(rank, phase, self.trained, self.claims)
            for number, rank in enumerate(self.ranks)
        )
        if not any(orders):  # somebody has a backward to run
            first = next(number for number in range(len(self.ranks)) if number not in gone)
            only = reached(self.ranks[first], phase, self.trained)[:1]
            orders = (*orders[:first], only, *orders[first + 1 :])
        over = (phase.shift % len(self.ranks),) if overflow else ()
        self.events.append(Backward(orders, synchronize, overflow=over, gone=gone, **more))
        self.events += [Finish()] if synchronize else []
        self.local, self.gradients, self.infinite = not synchronize, True, self.infinite or overflow
        self.averages = self.averages or synchronize

    def settled(self, phase: Phase) -> None:
        """Synchronizes what is accumulated, if anything is."""
        if self.local:
            self.backward(phase)

    def averaged(self, phase: Phase) -> None:
        """Sees to it that there are gradients, all synchronized."""
        if self.local or not self.gradients:
            self.backward(phase)

    def zero(self, to_none: bool = True) -> None:
        """Drops gradients, or sets them to zero."""
        self.events.append(ZeroGrad(to_none))
        self.infinite = self.averages = False
        self.gradients = self.gradients and not to_none
        self.local = self.local and not to_none  # zeros, which some ranks may have and others not

    def dropped(self) -> None:
        """There are no gradients any more."""
        self.gradients = self.averages = self.infinite = False


def permutation(items: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The permutation of that number, modulo how many there are; 0 is the identity, 1 swaps the last two."""
    left, result = list(items), []
    number %= factorial(len(items))
    for remaining in range(len(items), 0, -1):
        place, number = divmod(number, factorial(remaining - 1))
        result.append(left.pop(place))
    return tuple(result)


def order(rank: RankSeed, phase: Phase, trained: tuple[int, ...], claims: Claims) -> tuple[int, ...]:
    """In which order, and whether, a rank's backward reaches the parameters in a micro-batch."""
    everything = reached(rank, phase, trained)
    if claims.unused is None:
        return everything
    absent = rank.absent >> phase.shift
    present = tuple(p for p in everything if not absent >> trained.index(p) & 1)
    if claims.idle_ranks and rank.idle and phase.shift % 2 == 0:
        return ()
    return present or everything[:1]


def reached(rank: RankSeed, phase: Phase, trained: tuple[int, ...]) -> tuple[int, ...]:
    """In which order a rank's backward reaches the parameters in a micro-batch that uses all of them."""
    return permutation(trained, rank.order * (phase.twist + 1) + phase.twist)
