"""Setting gradients on a rank to None or to zero."""

from lockstep.oracle.events import ZeroGrad
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class ZeroGradOnRanks(OnRanks[ZeroGrad]):
    def run(self, rank: Rank, event: ZeroGrad, place: int) -> None:
        rank.zero_grad(event.set_to_none)


ON_RANKS = ZeroGradOnRanks()
