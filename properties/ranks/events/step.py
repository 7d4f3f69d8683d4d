"""A step on a rank, of the caller's optimizers or the implementation's; it shows their state and the loss scale."""

from lockstep.oracle.events import Step
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class StepOnRanks(OnRanks[Step]):
    def run(self, rank: Rank, event: Step, place: int) -> None:
        rank.training.step(event.groups)
        if rank.looks_at(place) and not rank.stands:  # what is stepped may be none of the model's own tensors
            full = "full_optimizer_state" in rank.offers
            held = rank.look(rank.wrapped.full_optimizer_state) if full else None
            rank.seen["states"][place] = rank.training.states(held)
        if rank.training.scale is not None:
            rank.seen["loss_scales"][place] = rank.training.scale


ON_RANKS = StepOnRanks()
