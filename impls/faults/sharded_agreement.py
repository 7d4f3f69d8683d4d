"""Sharded training in which ranks do not agree on what each can see only a part of: the norm, an overflow."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import Zero3

AGREED = "test_ranks_agree_on_overflows_and_on_the_loss_scale"
NORM = "test_the_reported_norm_is_that_of_the_whole_averaged_gradient"


class NormOfOwnShard(Zero2):
    """Each rank clips by the norm of what it owns."""

    known_fault = "the norm is not reduced over the shards"
    source = (
        "G14 D https://github.com/deepspeedai/DeepSpeed/pull/1021, "
        "G12 V https://github.com/radixark/miles_diffusion/pull/35, "
        "G22 V https://github.com/modelscope/ms-swift/pull/8341"
    )
    killed_by = (NORM,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        pieces = [nn.Parameter(torch.zeros_like(mean)) for mean in self.means.values() if mean.numel()]
        for piece, mean in zip(pieces, (mean for mean in self.means.values() if mean.numel()), strict=True):
            piece.grad = mean
        return torch.nn.utils.clip_grad_norm_(pieces, max_norm, norm_type)


class NormOverReplicas(Zero3):
    """The norm adds up shards of every replica."""

    known_fault = "the norm counts each replica's shards"
    source = "G02 V https://github.com/ByteDance-Seed/VeOmni/issues/184"
    killed_by = (NORM,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        replicas = dist.get_world_size() // dist.get_world_size(self.flats[0].group)
        factor = replicas ** (1 / norm_type)
        return super().clip_grad_norm_(max_norm / factor, norm_type) * factor


class OverflowOfOneRank(Zero2):
    """Each rank looks for overflows in what it owns, and skips the step alone."""

    known_fault = "ranks do not agree on whether gradients overflowed"
    source = "H15 V https://github.com/NVIDIA/Megatron-LM/pull/5331"
    killed_by = (AGREED,)

    def unscale_(self, scale: float) -> bool:
        super().unscale_(scale)
        return all(bool(mean.isfinite().all()) for mean in self.means.values())


class ClippingGivesUpAlone(Zero2):
    """A rank whose own piece is not finite takes no part in the norm: the step will be skipped."""

    known_fault = "a rank that sees an overflow in what it owns leaves the collective of clipping out"
    source = "recipe"
    killed_by = (AGREED,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        if not all(bool(mean.isfinite().all()) for mean in self.means.values()):
            return torch.tensor(float("inf"))
        return super().clip_grad_norm_(max_norm, norm_type)


class LargestOfNothing(Zero2):
    """Takes the infinity norm for the largest of this rank's largest elements."""

    known_fault = "a rank that owns no element has nothing to take the largest of, and raises"
    source = "G16 V https://github.com/NVIDIA/Megatron-LM/issues/5529"
    killed_by = (NORM,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Right for other norms."""
        if norm_type == float("inf") and self.means:
            max(float(mean.abs().max()) for mean in self.means.values() if mean.numel())
        return super().clip_grad_norm_(max_norm, norm_type)


class LooksAtNothing(Zero2):
    """Looks for overflows in a list of answers, one for each piece that it has."""

    known_fault = "a rank that owns no element has no answer whether gradients overflowed, and raises"
    source = "H18 D https://github.com/facebookresearch/fairscale/pull/262"
    killed_by = (AGREED,)

    def unscale_(self, scale: float) -> bool:
        """Right where there is a piece."""
        torch.stack([mean.isfinite().all() for mean in self.means.values() if mean.numel()])
        return super().unscale_(scale)
