"""A checkpoint kept for later, on a rank."""

from lockstep.oracle.program import Save
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class SaveOnRanks(OnRanks[Save]):
    """The caller keeps the last one in memory."""

    def run(self, rank: Rank, event: Save, place: int) -> None:
        """Save weights, and the rest."""
        rank.saved = rank.save()


ON_RANKS = SaveOnRanks()
