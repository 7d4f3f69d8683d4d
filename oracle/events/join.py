"""Join: from here on ranks may run out of micro-batches."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Join(Event):
    """From here to EndJoin ranks may run out of micro-batches: a Backward names those that are ``gone``.

    Until EndJoin these ranks only take part in the others' collectives, with zeros for their gradients. ``divide_by``:
    means divide by the number of all ranks, or of those that remain (``DIVISORS``).
    """

    while_joined: ClassVar[bool] = True  # which is refused by itself

    divide_by: str = DIVISORS[0]

    def __post_init__(self) -> None:
        if self.divide_by not in DIVISORS:
            raise ValueError(f"a mean divides by one of {', '.join(map(repr, DIVISORS))}, not by {self.divide_by!r}")

    def check(self, setup: Setup, before: Standing) -> None:
        """It is not inside another, and the optimizer has no state, which ranks that are gone would keep as it was."""
        if before.gone is not None:
            raise ValueError(f"{self!r}: a Join is not inside another, and EndJoin ends one")
        keeps = setup.optimizer != "SGD" or setup.masters or before.momentum
        if keeps or setup.loss_scale is not None or setup.buffers:
            raise ValueError(
                "Join takes SGD without momentum or masters, no loss scale and no buffers: others keep theirs"
            )

    def after(self, setup: Setup, before: Standing) -> Standing:
        """Ranks may be gone."""
        return before._replace(gone=(), divide_by=self.divide_by, joined=True)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Notes what means divide by."""
        state.over_all_ranks = self.divide_by == DIVISORS[0]
