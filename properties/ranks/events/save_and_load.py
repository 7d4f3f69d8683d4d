"""A run that ends and goes on in a new process, on a rank."""

from lockstep.oracle.program import SaveAndLoad
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class SaveAndLoadOnRanks(OnRanks[SaveAndLoad]):
    """All is saved, or there is a file that ranks of another world have left, and built anew."""

    def run(self, rank: Rank, event: SaveAndLoad, place: int) -> None:
        """Save, build and load."""
        weights, rest = rank.file or rank.save()
        rank.file = None
        rank.construct()
        rank.training.load(weights, rest if event.optimizer else None)


ON_RANKS = SaveAndLoadOnRanks()
