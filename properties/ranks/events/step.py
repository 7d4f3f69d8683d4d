"""A step on a rank, of the caller's optimizers or the implementation's. It shows optimizer state and the loss scale."""

from lockstep.oracle.events import Step
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class StepOnRanks(OnRanks[Step]):
    def run(self, rank: Rank, event: Step, place: int) -> None:
        if place == rank.conditions.added:
            rank.training.add_the_last_group()
        rank.training.step(event.groups)
        # The stepped tensors may be others than the model's own.
        if rank.looks_at(place) and not rank.stands and (states := rank.states()) is not None:
            rank.seen["states"][place] = states
        if rank.training.scale is not None:
            rank.seen["loss_scales"][place] = rank.training.scale


ON_RANKS = StepOnRanks()
