"""The end of a window in which ranks may run out of micro-batches. A rank that has some left leaves the join now."""

from lockstep.oracle.events import EndJoin
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class EndJoinOnRanks(OnRanks[EndJoin]):
    def run(self, rank: Rank, event: EndJoin, place: int) -> None:
        rank.window.close()
        rank.zero_grad(set_to_none=True)


ON_RANKS = EndJoinOnRanks()
