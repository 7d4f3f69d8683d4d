"""Kernels that take norms and clip, with one known fault each, as published code has them; P17 finds every one."""

import torch
import triton
import triton.language as tl

from lockstep.impls.faults.kernels_moving import BLOCK, grid
from lockstep.impls.kernels import norm as norms
from lockstep.impls.kernels import scale as scaling
from lockstep.impls.kernels.suite import Kernels


@triton.jit
def squares(source, target, count, BLOCK: tl.constexpr):
    """Per block, the sum of squares as the dtype has them."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + offsets, offsets < count, other=0)
    tl.store(target + tl.program_id(0), tl.sum((x * x).to(tl.float32), 0))


def plain_norm(tensors):
    """The root of the sum of squares."""
    parts = [torch.zeros(1)]
    for tensor in tensors:
        if tensor.numel():
            flat = tensor.float().reshape(-1) if tensor.dtype == torch.bfloat16 else tensor.reshape(-1).contiguous()
            sums = torch.empty(grid(flat.numel()), dtype=torch.float32)
            squares[grid(flat.numel())](flat, sums, flat.numel(), BLOCK=BLOCK)
            parts.append(sums)
    return torch.cat(parts).sum().sqrt()


class SquaresIn16Bits(Kernels):
    """Squares float16 values in float16."""

    @staticmethod
    def norm(tensors):
        return (
            plain_norm([t for t in tensors if t.dtype == torch.float16])
            if all(t.dtype == torch.float16 for t in tensors)
            else norms.norm(tensors)
        )


class SquaresOverflow(Kernels):
    """Squares in float32 without a scale: overflows and underflows where the norm does not."""

    @staticmethod
    def norm(tensors):
        return plain_norm([t.float() for t in tensors])


class AddsNorms(Kernels):
    """Adds norms instead of squares."""

    @staticmethod
    def norm(tensors):
        return sum((norms.norm([tensor]) for tensor in tensors), torch.zeros(()))


class NormOfTheSum(Kernels):
    """Takes the norm before the average, whatever the divisor."""

    @staticmethod
    def norm(tensors, divisor=1.0, scale=1.0):
        return norms.norm(tensors, 1.0, scale)


class NormUnscaled(Kernels):
    """Takes the norm before the scale."""

    @staticmethod
    def norm(tensors, divisor=1.0, scale=1.0):
        return norms.norm(tensors, divisor)


class NormByTheGreatest(Kernels):
    """Divides by the greatest element before it squares: NaN where that is infinite."""

    @staticmethod
    def norm(tensors):
        greatest = torch.stack([torch.zeros(()), *(t.float().abs().max() for t in tensors if t.numel())]).max()
        unit = torch.where(greatest == 0, 1.0, greatest)
        return norms.norm([t.float() / unit for t in tensors]) * unit


class NormOfNumbers(Kernels):
    """Leaves out what is NaN, as a maximum on a GPU does: a gradient that is lost is clipped like any other."""

    @staticmethod
    def norm(tensors):
        return norms.norm([torch.where(t.isnan(), torch.zeros_like(t), t) for t in tensors])


class CoefficientOfTheSum(Kernels):
    """Has a divisor, and clips by the norm of what is not averaged yet."""

    @staticmethod
    def clip_coefficient(tensors, max_norm, divisor=1.0):
        return norms.clip_coefficient(tensors, max_norm)


class CoefficientScalesUp(Kernels):
    """Has no min(1, ...), so that small gradients grow."""

    @staticmethod
    def clip_coefficient(tensors, max_norm):
        return max_norm / (norms.norm(tensors) + 1e-6)


class CoefficientWithoutEpsilon(Kernels):
    """Divides by the norm alone: NaN where that is zero."""

    @staticmethod
    def clip_coefficient(tensors, max_norm):
        return torch.clamp(max_norm / norms.norm(tensors), max=1.0)


class CoefficientOfNan(Kernels):
    """Takes the smaller of 1 and NaN to be 1."""

    @staticmethod
    def clip_coefficient(tensors, max_norm):
        return torch.fmin(norms.clip_coefficient(tensors, max_norm), torch.ones(()))


class CoefficientBySquares(Kernels):
    """Divides by the squared norm."""

    @staticmethod
    def clip_coefficient(tensors, max_norm):
        return torch.clamp(max_norm / (norms.squared_norm(tensors) + 1e-6), max=1.0)


class ClipsUnscaled(Kernels):
    """Averages and clips without the scale."""

    @staticmethod
    def average_and_clip_(tensors, divisor, max_norm, scale=1.0):
        return scaling.average_and_clip_(tensors, divisor, max_norm)


class ClipsByPlainNorm(Kernels):
    """Clips by a norm whose squares overflow: all becomes zero."""

    @staticmethod
    def average_and_clip_(tensors, divisor, max_norm):
        scaling.scale_(tensors, divisor)
        found = plain_norm([t.float() for t in tensors])
        scaling.scale_(tensors, coefficient=torch.minimum(torch.ones(()), torch.tensor(max_norm) / (found + 1e-6)))
        return found


class ClipsNanByOne(Kernels):
    """Takes the smaller of 1 and NaN to be 1, as fmin does: what is lost is not clipped, and the rest is stepped."""

    @staticmethod
    def average_and_clip_(tensors, divisor, max_norm):
        found = norms.norm_and_coefficient(tensors, max_norm, divisor, 1.0)
        scaling.scale_(tensors, divisor, coefficient=torch.fmin(found[1], torch.ones(())))
        return found[0]


class ClipsInfinityToZero(Kernels):
    """Zeroes what is infinite too where the norm is: nobody learns of the overflow."""

    @staticmethod
    def average_and_clip_(tensors, divisor, max_norm):
        found = scaling.average_and_clip_(tensors, divisor, max_norm)
        for tensor in tensors if found.isinf() else ():
            tensor.nan_to_num_(0.0)
        return found


class ClipsBySum(Kernels):
    """Clips by the norm before the average: that of the sum."""

    @staticmethod
    def average_and_clip_(tensors, divisor, max_norm, scale=1.0):
        found = norms.norm_and_coefficient(tensors, max_norm, 1.0, scale)
        scaling.scale_(tensors, divisor, scale, found[1])
        return found[0]


class CountsReplicas(Kernels):
    """Adds squared norms of replicated gradients over the ranks: right for shards only. pytorch/pytorch#88955."""

    @staticmethod
    def average_and_clip_(tensors, divisor, max_norm, scale=1.0):
        found = norms.norm(tensors, divisor, scale) * divisor**0.5
        scaling.scale_(tensors, divisor, scale, torch.clamp(max_norm / (found + 1e-6), max=1.0))
        return found
