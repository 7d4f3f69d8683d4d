"""An evaluation on a rank: one forward without autograd, which shows the parameters as forward has read them."""

from lockstep.oracle.events import Evaluate
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class EvaluateOnRanks(OnRanks[Evaluate]):
    def run(self, rank: Rank, event: Evaluate, place: int) -> None:
        rank.seen["evaluated"][place] = rank.evaluate(event)


ON_RANKS = EvaluateOnRanks()
