"""A forward on a rank whose loss, NaN, is not used."""

import torch

from lockstep.oracle.events import DropLoss
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class DropLossOnRanks(OnRanks[DropLoss]):
    def run(self, rank: Rank, event: DropLoss, place: int) -> None:
        used = [index for index, parameter in enumerate(rank.probe.in_order()) if parameter.requires_grad][::-1]
        with adapter.synchronizing(rank.wrapped, event.synchronize):
            rank.call(rank.filled_with(torch.nan), used)


ON_RANKS = DropLossOnRanks()
