"""Changing hyper-parameters on a rank: the caller writes them into the groups of its optimizers."""

from lockstep.oracle import hyperparameters
from lockstep.oracle.events import SetHyperparameters
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class SetHyperparametersOnRanks(OnRanks[SetHyperparameters]):
    def run(self, rank: Rank, event: SetHyperparameters, place: int) -> None:
        rank.training.set(hyperparameters.changed(rank.training.settings, event.values, event.group))


ON_RANKS = SetHyperparametersOnRanks()
