"""An earlier checkpoint, the last that was saved, loaded into what is there on a rank."""

import copy

from lockstep.oracle.events import Load
from lockstep.properties.ranks import checkpoint
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class LoadOnRanks(OnRanks[Load]):
    def run(self, rank: Rank, event: Load, place: int) -> None:
        rank.zero_grad(set_to_none=True)
        weights, rest = copy.deepcopy(checkpoint.ended(rank.saved))  # a file stays as it is
        rank.training.load(weights, rest if event.optimizer else None)


ON_RANKS = LoadOnRanks()
