"""Replacing tensors on a rank by new ones with equal values, under all their names and in the caller's optimizer."""

import torch

from lockstep.oracle.events import Replace
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class ReplaceOnRanks(OnRanks[Replace]):
    def run(self, rank: Rank, event: Replace, place: int) -> None:
        old = rank.probe.in_order()
        for tensor in event.parameters:
            new = torch.nn.Parameter(old[tensor].detach().clone(), requires_grad=old[tensor].requires_grad)
            for index in rank.scenario.names(tensor):
                (rank.probe.rename if event.renamed else rank.probe.put)(index, new)
            rank.watched.pop(tensor, None)
            rank.training.replace(tensor, new)
        rank.freeze()


ON_RANKS = ReplaceOnRanks()
