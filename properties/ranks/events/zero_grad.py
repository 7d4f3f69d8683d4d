"""Gradients dropped, or set to zero, on a rank."""

from lockstep.oracle.program import ZeroGrad
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class ZeroGradOnRanks(OnRanks[ZeroGrad]):
    """They are, unless the next micro-batch does it between its forwards and backwards."""

    def run(self, rank: Rank, event: ZeroGrad, place: int) -> None:
        """Drop gradients, or set them to zero."""
        if place not in rank.conditions.zeroed_late:
            rank.zero_grad(event.set_to_none)


ON_RANKS = ZeroGradOnRanks()
