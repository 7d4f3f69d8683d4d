"""Replacing gradients by copies on a rank, and counting them."""

from lockstep.oracle.events import CopyGradients
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class CopyGradientsOnRanks(OnRanks[CopyGradients]):
    def run(self, rank: Rank, event: CopyGradients, place: int) -> None:
        for parameter in rank.probe.tensors():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
                rank.seen["copied"] += 1


ON_RANKS = CopyGradientsOnRanks()
