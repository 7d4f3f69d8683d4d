"""The end of a synchronization on a rank: the implementation is told that backward has ended."""

from lockstep.oracle.events import Finish
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class FinishOnRanks(OnRanks[Finish]):
    def run(self, rank: Rank, event: Finish, place: int) -> None:
        adapter.finish(rank.wrapped, rank.probe)
        if rank.caller.keeps_gradients:
            rank.seen["kept"][place] = rank.all_kept()


ON_RANKS = FinishOnRanks()
