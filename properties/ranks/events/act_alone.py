"""An act of one rank alone: an evaluation, and a state dict that is not used."""

from lockstep.oracle.events import ActAlone, Evaluate
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class ActAloneOnRanks(OnRanks[ActAlone]):
    def run(self, rank: Rank, event: ActAlone, place: int) -> None:
        if rank.role != event.rank:
            return
        rank.seen["evaluated"][place] = rank.evaluate(Evaluate())
        asked = rank.wrapped if hasattr(rank.wrapped, "state_dict") else rank.probe
        asked.state_dict()


ON_RANKS = ActAloneOnRanks()
