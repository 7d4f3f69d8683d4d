"""Saving, constructing anew and loading on a rank, or loading a file that ranks of another world have written."""

from lockstep.oracle.events import SaveAndLoad
from lockstep.properties.ranks import checkpoint
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class SaveAndLoadOnRanks(OnRanks[SaveAndLoad]):
    def run(self, rank: Rank, event: SaveAndLoad, place: int) -> None:
        weights, rest = rank.file or checkpoint.ended(rank.save())
        rank.file = None
        rank.construct()
        rank.training.load(weights, rest if event.optimizer else None)


ON_RANKS = SaveAndLoadOnRanks()
