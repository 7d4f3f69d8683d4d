"""Loading the last saved checkpoint into the existing objects on a rank."""

import copy

from lockstep.oracle.events import Load
from lockstep.properties.ranks import checkpoint
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class LoadOnRanks(OnRanks[Load]):
    def run(self, rank: Rank, event: Load, place: int) -> None:
        rank.zero_grad(set_to_none=True)
        weights, rest = copy.deepcopy(checkpoint.ended(rank.saved))  # loading must not change the saved checkpoint
        rank.training.load(weights, rest if event.optimizer else None)


ON_RANKS = LoadOnRanks()
