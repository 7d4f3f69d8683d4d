"""The base of the modules beside this one. Each says how a rank carries out one kind of event."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import torch

from lockstep.oracle.events import Event
from lockstep.properties.ranks.rank import Rank

E = TypeVar("E", bound=Event)


class OnRanks(ABC, Generic[E]):
    """The way in which a rank carries out events of one kind. The module's instance is called ``ON_RANKS``."""

    @abstractmethod
    def run(self, rank: Rank, event: E, place: int) -> None:
        """Carry out the event of that place in the program."""

    def skip(self, rank: Rank, event: E) -> None:
        """Note an event that this rank does not carry out.

        Either this rank has run out of micro-batches, or ranks of another world have run this part of the program.
        """
        return

    def is_shown(self, rank: Rank, event: E, place: int) -> bool:
        """True if the result of the event is observed. False if its meaning does not specify the result."""
        return True

    def losses(self, rank: Rank, event: E, place: int) -> AbstractContextManager[list[torch.Tensor]] | None:
        """The losses whose backward may run inside this context, perhaps together with another model's; None: there are
        none.
        """
        return None
