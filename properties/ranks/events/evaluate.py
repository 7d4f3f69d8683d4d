"""An evaluation on a rank."""

from lockstep.oracle.program import Evaluate
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class EvaluateOnRanks(OnRanks[Evaluate]):
    """One forward, without autograd."""

    def run(self, rank: Rank, event: Evaluate, place: int) -> None:
        """Evaluate, and see the parameters as forward has read them."""
        rank.seen["evaluated"][place] = rank.evaluate(event)


ON_RANKS = EvaluateOnRanks()
