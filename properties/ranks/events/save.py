"""Saving a checkpoint on a rank. The caller keeps the last one in memory."""

from lockstep.oracle.events import Save
from lockstep.properties.ranks import checkpoint
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class SaveOnRanks(OnRanks[Save]):
    def run(self, rank: Rank, event: Save, place: int) -> None:
        checkpoint.ended(rank.saved)  # an asynchronous save must end before the next begins
        rank.saved = rank.save()


ON_RANKS = SaveOnRanks()
