"""Moving the model's tensors to new memory on a rank: parameters, their gradients, and buffers."""

import torch

from lockstep.oracle.events import Move
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class MoveOnRanks(OnRanks[Move]):
    def run(self, rank: Rank, event: Move, place: int) -> None:
        rank.probe._apply(torch.clone)


ON_RANKS = MoveOnRanks()
