"""The end of a synchronization on a rank."""

from lockstep.oracle.program import Finish
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class FinishOnRanks(OnRanks[Finish]):
    """The implementation hears that backward is over."""

    def run(self, rank: Rank, event: Finish, place: int) -> None:
        """End it, and see what the caller's hooks have kept."""
        adapter.finish(rank.wrapped)
        if rank.conditions.keeps_gradients:
            rank.seen["kept"][place] = rank.all_kept()


ON_RANKS = FinishOnRanks()
