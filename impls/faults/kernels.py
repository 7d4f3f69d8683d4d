"""Kernels with one known fault each, as published code has them; P17 finds every one.

Two faults do not show in results on a CPU and are found in PTX instead: see ``impls/tests/test_kernels_ptx.py``.
"""

import torch
import triton
import triton.language as tl

from impls.kernels import norm as norms
from impls.kernels import pack as packing
from impls.kernels import scale as scaling
from impls.kernels import step as steps
from impls.kernels.suite import Kernels

BLOCK = 1024


def grid(count: int) -> tuple[int]:
    """Programs for so many elements."""
    return (triton.cdiv(count, BLOCK),)


@triton.jit
def copy_by_one_stride(source, target, stride, count, BLOCK: tl.constexpr):
    """target[i] = source[i * stride]."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets * stride, offsets < count), offsets < count)


def each(tensors, bucket):
    """Tensors and their places in the bucket, as words that Triton moves."""
    begin = 0
    for tensor in tensors:
        if tensor.numel():
            part = bucket[begin : begin + tensor.numel()]
            yield packing.carried(tensor, True), packing.carried(part, True)
            begin += tensor.numel()


class FirstStride(Kernels):
    """Takes the first dimension's stride for all of a tensor's dimensions."""

    @staticmethod
    def pack(tensors, bucket):
        for tensor, part in each(tensors, bucket):
            stride = tensor.stride(0) if tensor.dim() else 1
            copy_by_one_stride[grid(part.numel())](tensor, part, stride, part.numel(), BLOCK=BLOCK)


class RawAddress(Kernels):
    """Passes a raw address as the kernel's pointer argument: to Triton it is a number."""

    @staticmethod
    def pack(tensors, bucket):
        for tensor, part in each(tensors, bucket):
            source = tensor.contiguous().data_ptr()
            copy_by_one_stride[grid(part.numel())](source, part, 1, part.numel(), BLOCK=BLOCK)


class NoMask(Kernels):
    """Writes whole blocks: past the end of the bucket."""

    @staticmethod
    def pack(tensors, bucket):
        for tensor, part in each(tensors, bucket):
            copy_by_one_stride[grid(part.numel())](tensor.contiguous(), part, 1, part.numel() + 32, BLOCK=BLOCK)


class FixedGrid(Kernels):
    """Launches at most 128 blocks, and what is longer is left."""

    @staticmethod
    def pack(tensors, bucket):
        for tensor, part in each(tensors, bucket):
            count = min(part.numel(), 128 * BLOCK)
            copy_by_one_stride[grid(count)](tensor.contiguous(), part, 1, count, BLOCK=BLOCK)

    @staticmethod
    def norm(tensors):
        return norms.norm([tensor.reshape(-1)[: 128 * BLOCK] for tensor in tensors])


class TableOf64Tensors(Kernels):
    """Has a table for 64 tensors, and fills it once."""

    @staticmethod
    def pack(tensors, bucket):
        packing.pack(tensors[:64], bucket[: sum(tensor.numel() for tensor in tensors[:64])])

    @staticmethod
    def norm(tensors):
        return norms.norm(tensors[:64])


class IndexOf32Bits(Kernels):
    """Offsets of 32 bits: NVIDIA/TransformerEngine#3136."""

    @staticmethod
    def pack(tensors, bucket):
        packing.transfer(tensors, bucket, True, 1.0, 1.0, None, index=tl.int32)


class IndexOf16Bits(Kernels):
    """The same in small: what goes wrong past 2**31 goes wrong past 2**15."""

    @staticmethod
    def pack(tensors, bucket):
        packing.transfer(tensors, bucket, True, 1.0, 1.0, None, index=tl.int16)


class EmptyTensors(Kernels):
    """Launches for every tensor, also for one without elements: a grid of nothing."""

    @staticmethod
    def unpack(bucket, tensors):
        begin = 0
        for tensor in tensors:
            part = bucket[begin : begin + tensor.numel()].view(tensor.shape)
            flat = torch.empty_like(part)
            if not grid(tensor.numel())[0]:
                raise RuntimeError("Triton Error [CUDA]: invalid argument")  # what a launch of no blocks gives there
            source, target = packing.carried(part.reshape(-1), True), packing.carried(flat.reshape(-1), True)
            copy_by_one_stride[grid(part.numel())](source, target, 1, part.numel(), BLOCK=BLOCK)
            tensor.copy_(flat)
            begin += tensor.numel()


class FirstDtype(Kernels):
    """Looks at the first tensor's dtype only: hpcaitech/ColossalAI#675."""

    @staticmethod
    def pack(tensors, bucket, scale=1.0, coefficient=None):
        same_size = [t.dtype.itemsize == tensors[0].dtype.itemsize for t in tensors]
        taken = [t.view(tensors[0].dtype) if ok else t for t, ok in zip(tensors, same_size, strict=True)]
        packing.pack(taken, bucket, scale, coefficient)


class RoundsTwice(Kernels):
    """Averages in the bucket's 16 bits, then casts."""

    @staticmethod
    def unpack(bucket, tensors, divisor=1.0, scale=1.0, coefficient=None):
        averaged = bucket.clone()
        scaling.scale_([averaged], divisor, scale, coefficient)
        packing.unpack(averaged, tensors)


class UnpacksSums(Kernels):
    """Has a divisor, and does not average."""

    @staticmethod
    def unpack(bucket, tensors, divisor=1.0):
        packing.unpack(bucket, tensors)


class ReciprocalAlone(Kernels):
    """Has a divisor and nothing else, and multiplies by the rounded 1 / N."""

    @staticmethod
    def scale_(tensors, divisor):
        scaling.scale_(tensors, 1.0, float(torch.tensor(1.0) / torch.tensor(divisor)))


class Reciprocal(Kernels):
    """Multiplies by the rounded 1 / N."""

    @staticmethod
    def scale_(tensors, divisor=1.0, scale=1.0, coefficient=None):
        reciprocal = float(torch.tensor(1.0) / torch.tensor(divisor))
        scaling.scale_(tensors, 1.0, reciprocal)
        scaling.scale_(tensors, 1.0, scale, coefficient)


@triton.jit
def truncate(source, target, count, BLOCK: tl.constexpr):
    """The upper half of each float32's bits."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(source + offsets, offsets < count).to(tl.uint32, bitcast=True)
    tl.store(target + offsets, (bits >> 16).to(tl.int16), offsets < count)


class Truncates(Kernels):
    """Casts to bfloat16 by dropping bits, as Triton's interpreter does: triton-lang/triton#4972."""

    @staticmethod
    def cast(source, dtype):
        if dtype != torch.bfloat16 or not source.numel():
            return packing.cast(source, dtype)
        wide = packing.cast(source, torch.float32)
        out = torch.empty(source.shape, dtype=dtype, device=source.device)
        words = packing.carried(out.view(-1), False)
        truncate[grid(out.numel())](wide.view(-1), words, out.numel(), BLOCK=BLOCK)
        return out


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


class StateInParamDtype(Kernels):
    """Stores the optimizer's state through the parameter's dtype: databricks/flashoptim#2."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay, coefficient=None):
        steps.adamw_step(
            param, master, grad, exp_avg, exp_avg_sq,
            step=step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, coefficient=coefficient,
        )  # fmt: skip
        for state in (exp_avg, exp_avg_sq):
            state.copy_(state.to(param.dtype))


class StepOffByOne(Kernels):
    """Corrects the bias of the step after."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay):
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        steps.adamw_step(param, master, grad, exp_avg, exp_avg_sq, step=step + 1, **named)


class ParameterUpdatedApart(Kernels):
    """Steps the 16-bit parameter itself instead of rounding the master."""

    @staticmethod
    def sgd_step(param, master, grad, momentum_buffer=None, *, lr, momentum=0.0, weight_decay=0.0, first=False):
        before = master.clone()
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "first": first}
        steps.sgd_step(param, master, grad, momentum_buffer, **named)
        param.copy_(before.to(param.dtype) - (before - master).to(param.dtype))


class SgdUnscaled(Kernels):
    """Steps without the scale."""

    @staticmethod
    def sgd_step(param, master, grad, momentum_buffer=None, *, lr, momentum, weight_decay, first, scale=1.0):
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "first": first}
        steps.sgd_step(param, master, grad, momentum_buffer, **named)


class AdamwUnscaled(Kernels):
    """The same in AdamW, whose parameters hardly show it."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay, scale=1.0):
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        steps.adamw_step(param, master, grad, exp_avg, exp_avg_sq, step=step, **named)


class SgdSkipsNan(Kernels):
    """Takes what is NaN in a gradient for zero: training goes on, and nobody learns of it."""

    @staticmethod
    def sgd_step(param, master, grad, momentum_buffer=None, *, lr, momentum=0.0, weight_decay=0.0, first=False):
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "first": first}
        steps.sgd_step(param, master, torch.where(grad.isnan(), 0, grad), momentum_buffer, **named)


class AdamwClampsInfinity(Kernels):
    """Takes an infinite gradient for the largest number of its dtype."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay):
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        largest = torch.finfo(grad.dtype).max
        steps.adamw_step(param, master, grad.clamp(-largest, largest), exp_avg, exp_avg_sq, step=step, **named)


# Seen in PTX, not in results.


@triton.jit(do_not_specialize=["count"])
def divide_approximately(values, count, divisor, BLOCK: tl.constexpr):
    """``/`` is div.full.f32: off by up to two floats."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(values + offsets, tl.load(values + offsets, offsets < count) / divisor, offsets < count)


@triton.jit
def a_kernel_for_every_length(values, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The length is a constant of the program."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(values + offsets, tl.load(values + offsets, offsets < COUNT), offsets < COUNT)
