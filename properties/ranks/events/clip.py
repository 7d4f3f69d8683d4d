"""Clipping on a rank: by the implementation if it offers a method, else by torch on all existing gradients."""

import torch

from lockstep.oracle.events import Clip
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.probes import to_numpy
from lockstep.properties.ranks.rank import Rank


class ClipOnRanks(OnRanks[Clip]):
    def run(self, rank: Rank, event: Clip, place: int) -> None:
        rank.seen["norms"][place] = to_numpy(clipped(rank, event))

    def is_shown(self, rank: Rank, event: Clip, place: int) -> bool:
        # After an overflow the gradients are not specified.
        return not rank.scenario.overflowed(place)


def clipped(rank: Rank, event: Clip) -> torch.Tensor | None:
    """Clip the gradients and return their norm, if it is known."""
    if "clip_grad_norm_" in rank.offers:
        norm = adapter.clip(rank.wrapped, event.max_norm, event.norm_type)
        if norm is None:
            return None
        norm = torch.as_tensor(norm, dtype=None if torch.is_tensor(norm) else torch.float64)
        return norm.reshape(()) if norm.numel() == 1 else norm  # fused kernels give a tensor of one element
    rank.refuse_of_pieces("clips gradients", "clip_grad_norm_")
    # Both are generators, like `parameters()`, so that they can be read only once.
    tensors = rank.asked.parameters() if rank.stands else (each for each in rank.probe.tensors())
    return torch.nn.utils.clip_grad_norm_(tensors, event.max_norm, event.norm_type)


ON_RANKS = ClipOnRanks()
