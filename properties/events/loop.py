"""A training loop while it is drawn: the kinds of its phases, and helpers with which events write themselves.

Every micro-batch is synchronized eventually. Each phase writes its events after the events that they require.
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

# The reason for kinds that the general draw leaves out to have room for common ones. Laws that combine any features
# draw them often enough (`properties.strategies.combined`).
SELDOM = "a program has few phases, and each kind more leaves less room for those that every law is about"


def _nothing(claims: Claims) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class RankSeed:
    """The draw for one rank: the number of its order, and its unused parameters as bits.

    ``idle``: it uses no parameter in about half of the micro-batches.
    """

    order: int
    absent: int
    idle: bool = False


@dataclass(frozen=True)
class Phase:
    """The draw for one event. ``twist`` and ``shift`` vary the orders and unused parameters of a micro-batch.

    They choose the form of any other event.
    """

    kind: "Kind"
    twist: int = 0
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of phase, and how the loop writes one. It writes nothing where the event is not possible.

    If ``claimed``, the general draw contains it ``often`` times, or never for the reason given in ``apart``.
    """

    name: str
    write: Callable[["Loop", Phase], None]
    claimed: Claimed = always
    often: int = 1  # kinds drawn more than once keep their place in the draw even if they are not claimed
    apart: str = ""
    takes: tuple["Kind", ...] = ()  # the kinds that it writes first, which must be claimed too
    forward: bool = False  # true if it begins with a forward on every rank
    while_joined: bool = False  # true if it is allowed in a join; other kinds end the join
    options: tuple[str, ...] = ()  # the options of a scenario that it needs
    rules_out: Callable[[Claims], tuple[str, ...]] = _nothing  # the options of a scenario that it excludes

    def may_be_drawn(self, claims: Claims) -> bool:
        """True if it and everything that it needs are claimed."""
        return self.claimed(claims) and all(each.may_be_drawn(claims) for each in self.takes)


class Loop:
    """The events so far, and the state after them.

    ``clips_at``: the places of Clip events whose maximum must still be set to the actual norm.
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
        self.built_at = 0  # the number of events before the last construction
        self.clips_at: list[int] = []
        self.local = self.gradients = self.averages = self.infinite = self.unscaled = False
        self.kept = False  # true if something was saved since the last construction
        self.gone: tuple[int, ...] | None = None  # the ranks that have run out of micro-batches; None outside a join

    def tensor(self, phase: Phase) -> int:
        """The tensor of an event: the last one, unless a number is drawn."""
        return self.tensors[-1 - phase.shift % len(self.tensors)]

    def backward(self, phase: Phase, synchronize: bool = True, overflow: bool = False, **more: Any) -> None:
        """Write one micro-batch. ``more``: its unusual properties."""
        # Ranks without batches have no average any more. Then adding new gradients before averaging gives another
        # result than adding their mean.
        late = str(more.get("meanwhile", "")).endswith(" gradients")  # this micro-batch zeroes gradients itself
        if late:
            self.averages = self.infinite = False
        if self.averages and (self.gone is not None or not self.claims.adds_to_averages):
            self.zero()
        gone = self.gone or ()
        orders = tuple(
            () if number in gone else order(rank, phase, self.trained, self.claims)
            for number, rank in enumerate(self.ranks)
        )
        if not any(orders):  # at least one rank must run a backward
            first = next(number for number in range(len(self.ranks)) if number not in gone)
            only = reached(self.ranks[first], phase, self.trained)[:1]
            orders = (*orders[:first], only, *orders[first + 1 :])
        over = (phase.shift % len(self.ranks),) if overflow else ()
        self.events.append(Backward(orders, synchronize, overflow=over, gone=gone, **more))
        self.events += [Finish()] if synchronize else []
        self.local, self.gradients, self.infinite = not synchronize, True, self.infinite or overflow
        self.averages = self.averages or synchronize

    def settled(self, phase: Phase) -> None:
        """Synchronize the accumulated gradients, if there are any."""
        if self.local:
            self.backward(phase)

    def averaged(self, phase: Phase) -> None:
        """Make sure that there are gradients and that all are synchronized."""
        if self.local or not self.gradients:
            self.backward(phase)

    def zero(self, to_none: bool = True) -> None:
        """Set gradients to None or to zero."""
        self.events.append(ZeroGrad(to_none))
        self.infinite = self.averages = False
        self.gradients = self.gradients and not to_none
        self.local = self.local and not to_none  # some ranks may have zeros and others no gradient

    def dropped(self) -> None:
        """Note that there are no gradients any more."""
        self.gradients = self.averages = self.infinite = False


def permutation(items: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The permutation with that number, modulo their count; 0 is the identity, 1 swaps the last two."""
    left, result = list(items), []
    number %= factorial(len(items))
    for remaining in range(len(items), 0, -1):
        place, number = divmod(number, factorial(remaining - 1))
        result.append(left.pop(place))
    return tuple(result)


def order(rank: RankSeed, phase: Phase, trained: tuple[int, ...], claims: Claims) -> tuple[int, ...]:
    """The parameters that a rank's backward reaches in a micro-batch, in order."""
    everything = reached(rank, phase, trained)
    if claims.unused is None:
        return everything
    absent = rank.absent >> phase.shift
    present = tuple(p for p in everything if not absent >> trained.index(p) & 1)
    if claims.idle_ranks and rank.idle and phase.shift % 2 == 0:
        return ()
    return present or everything[:1]


def reached(rank: RankSeed, phase: Phase, trained: tuple[int, ...]) -> tuple[int, ...]:
    """The order in which a rank's backward reaches the parameters if the micro-batch uses all of them."""
    return permutation(trained, rank.order * (phase.twist + 1) + phase.twist)
