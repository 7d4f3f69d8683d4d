"""Gradients divided on a rank by the loss scale of the caller."""

from lockstep.oracle.events import Unscale
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class UnscaleOnRanks(OnRanks[Unscale]):
    def run(self, rank: Rank, event: Unscale, place: int) -> None:
        rank.training.unscale()


ON_RANKS = UnscaleOnRanks()
