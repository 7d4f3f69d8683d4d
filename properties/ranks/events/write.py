"""Writing into parameters on a rank, in place and without autograd."""

from lockstep.oracle.events import Write
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class WriteOnRanks(OnRanks[Write]):
    def run(self, rank: Rank, event: Write, place: int) -> None:
        # 0 - p instead of -p, so that no zero becomes negative.
        tensors = rank.probe.in_order()
        for tensor in (tensors[index] for index in event.parameters):
            tensor.data.copy_(0 - tensor.data)


ON_RANKS = WriteOnRanks()
