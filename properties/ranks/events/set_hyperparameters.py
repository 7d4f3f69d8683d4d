"""Hyper-parameters changed on a rank."""

from lockstep.oracle import hyperparameters
from lockstep.oracle.program import SetHyperparameters
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class SetHyperparametersOnRanks(OnRanks[SetHyperparameters]):
    """The caller writes them into the groups of its optimizers."""

    def run(self, rank: Rank, event: SetHyperparameters, place: int) -> None:
        """Change those of one group, or of all."""
        rank.training.set(hyperparameters.after(rank.training.settings, event))


ON_RANKS = SetHyperparametersOnRanks()
