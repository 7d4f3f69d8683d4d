"""Dividing the gradients on a rank by the caller's loss scale."""

from lockstep.oracle.events import Unscale
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class UnscaleOnRanks(OnRanks[Unscale]):
    def run(self, rank: Rank, event: Unscale, place: int) -> None:
        rank.training.unscale()


ON_RANKS = UnscaleOnRanks()
