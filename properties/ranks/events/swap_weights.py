"""An evaluation on a rank with other weights, for example their average, in place of the model's.

They are written in the usual way, which bypasses autograd and its version counter.
"""

from lockstep.oracle.events import Evaluate, SwapWeights
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank
from lockstep.properties.seen import OTHER_WEIGHTS


class SwapWeightsOnRanks(OnRanks[SwapWeights]):
    def run(self, rank: Rank, event: SwapWeights, place: int) -> None:
        weights = rank.probe.tensors()
        kept = [tensor.detach().clone() for tensor in weights]
        for tensor in weights:
            tensor.data.fill_(OTHER_WEIGHTS)
        rank.seen["swapped"][place] = rank.evaluate(Evaluate())
        for tensor, values in zip(weights, kept, strict=True):
            tensor.data.copy_(values)


ON_RANKS = SwapWeightsOnRanks()
