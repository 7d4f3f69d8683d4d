"""Freezing parameters on a rank, or training them again: the caller sets ``requires_grad``."""

from lockstep.oracle.events import Freeze
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class FreezeOnRanks(OnRanks[Freeze]):
    def run(self, rank: Rank, event: Freeze, place: int) -> None:
        self.skip(rank, event)
        rank.freeze()

    def skip(self, rank: Rank, event: Freeze) -> None:
        rank.frozen = event.of_frozen(rank.frozen)


ON_RANKS = FreezeOnRanks()
