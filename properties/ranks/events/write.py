"""What the caller writes into parameters on a rank."""

from lockstep.oracle.program import Write
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class WriteOnRanks(OnRanks[Write]):
    """It writes in place, and past autograd."""

    def run(self, rank: Rank, event: Write, place: int) -> None:
        """Write 0 - p in the place of p: no zero becomes negative."""
        tensors = rank.probe.in_order()
        for tensor in (tensors[index] for index in event.parameters):
            tensor.data.copy_(0 - tensor.data)


ON_RANKS = WriteOnRanks()
