"""Parameters frozen, or trained again, on a rank."""

from lockstep.oracle.program import Freeze
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class FreezeOnRanks(OnRanks[Freeze]):
    """The caller sets ``requires_grad``."""

    def run(self, rank: Rank, event: Freeze, place: int) -> None:
        """Set it on all parameters, as the model holds them now."""
        self.skip(rank, event)
        rank.freeze()

    def skip(self, rank: Rank, event: Freeze) -> None:
        """Know what is frozen."""
        rank.frozen = event.after(rank.frozen)


ON_RANKS = FreezeOnRanks()
