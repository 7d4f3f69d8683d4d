"""A window in which ranks may run out of micro-batches.

Each rank stays in the implementation's ``join`` until it has.
"""

from lockstep.oracle.events import Join
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class JoinOnRanks(OnRanks[Join]):
    def run(self, rank: Rank, event: Join, place: int) -> None:
        rank.window.enter_context(adapter.joining(rank.wrapped, event.divide_by))


ON_RANKS = JoinOnRanks()
