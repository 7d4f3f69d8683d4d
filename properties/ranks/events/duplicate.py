"""A deep copy of the model on a rank, as for an average of its weights, and an evaluation of every copy."""

import copy

import torch

from lockstep.oracle.events import Duplicate
from lockstep.properties.ranks.evaluating import forget_what_was_read, what_was_read
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.rank import Rank


class DuplicateOnRanks(OnRanks[Duplicate]):
    def run(self, rank: Rank, event: Duplicate, place: int) -> None:
        rank.duplicates.append(copy.deepcopy(rank.probe))
        found = rank.seen["duplicates"][place] = []
        for duplicate in rank.duplicates:
            forget_what_was_read(duplicate.homes)
            with torch.no_grad():
                duplicate.eval()(rank.filled_with(0.0), tuple(range(len(duplicate.homes))))
            found.append(what_was_read(duplicate.homes))


ON_RANKS = DuplicateOnRanks()
