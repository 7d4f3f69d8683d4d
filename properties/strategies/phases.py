"""What numbers are drawn for ranks and for events, and the orders in which backward reaches parameters by them."""

from dataclasses import dataclass
from math import factorial

from lockstep.properties.claims import Claims


@dataclass(frozen=True)
class RankSeed:
    """What is drawn for one rank: the number of its order, and the set of parameters absent there as bits."""

    order: int
    absent: int


@dataclass(frozen=True)
class Phase:
    """What is drawn for one event. ``twist`` and ``shift`` tell a micro-batch's orders and absences from others', and
    which form any other event has.
    """

    kind: str
    twist: int = 0
    shift: int = 0


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
    reached = permutation(trained, rank.order * (phase.twist + 1) + phase.twist)
    if claims.unused is None:
        return reached
    absent = rank.absent >> phase.shift
    present = tuple(p for p in reached if not absent >> trained.index(p) & 1)
    return present or reached[:1]  # a rank that uses nothing has no backward to run
