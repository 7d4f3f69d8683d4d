"""The beginning of a window in which ranks may run out of micro-batches, on a rank."""

from lockstep.oracle.program import Join
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class JoinOnRanks(OnRanks[Join]):
    """The caller enters the implementation's ``join``, and leaves it when its micro-batches have run out."""

    def run(self, rank: Rank, event: Join, place: int) -> None:
        """Enter it."""
        rank.window.enter_context(adapter.joining(rank.wrapped, event.divide_by))


ON_RANKS = JoinOnRanks()
