"""Gradients divided by the loss scale on a rank."""

from lockstep.oracle.program import Unscale
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class UnscaleOnRanks(OnRanks[Unscale]):
    """The caller's loss scale, or the implementation's, divides them."""

    def run(self, rank: Rank, event: Unscale, place: int) -> None:
        """Divide every gradient by the scale."""
        rank.training.unscale()


ON_RANKS = UnscaleOnRanks()
