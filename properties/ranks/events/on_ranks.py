"""The base of the modules beside this one: each says how a rank carries out one kind of event."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import torch

from lockstep.oracle.events import Event
from lockstep.properties.ranks.rank import Rank

E = TypeVar("E", bound=Event)


class OnRanks(ABC, Generic[E]):
    """The way in which a rank carries out events of one kind. A module calls its own ``ON_RANKS``."""

    @abstractmethod
    def run(self, rank: Rank, event: E, place: int) -> None:
        """Carry out the event of that place in the rank's program."""

    def skip(self, rank: Rank, event: E) -> None:
        """Take note of an event that others carry out: this rank has run out of micro-batches, or the event comes in a
        part of the program that ranks of another world have run.
        """
        return

    def is_shown(self, rank: Rank, event: E, place: int) -> bool:
        """True if what the event shows is looked at: not where its meaning leaves that open."""
        return True

    def losses(self, rank: Rank, event: E, place: int) -> AbstractContextManager[list[torch.Tensor]] | None:
        """Losses that go backward inside this context, and may do so together with another model's; None: the event has
        none.
        """
        return None
