"""Kernels that pack, unpack, scale and cast with one known fault each, as published code has them; P17 finds every one.

Some take norms too, where the fault is that of any kernel on a list.
"""

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels import norm as norms
from lockstep.impls.kernels import pack as packing
from lockstep.impls.kernels import scale as scaling
from lockstep.impls.kernels.suite import Kernels

BLOCK = 1024


def grid(count: int) -> tuple[int]:
    """Programs for so many elements."""
    return (triton.cdiv(count, BLOCK),)


@triton.jit
def copy_by_one_stride(source, target, stride, count, BLOCK: tl.constexpr):
    """target[i] = source[i * stride]."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets * stride, offsets < count), offsets < count)


def carried(tensor):
    """The same memory as words that Triton moves bit for bit."""
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize])


def each(tensors, bucket):
    """Tensors and their places in the bucket, as words that Triton moves."""
    begin = 0
    for tensor in tensors:
        if tensor.numel():
            part = bucket[begin : begin + tensor.numel()]
            yield carried(tensor), carried(part)
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
            source, target = carried(part.reshape(-1)), carried(flat.reshape(-1))
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
        words = carried(out.view(-1))
        truncate[grid(out.numel())](wide.view(-1), words, out.numel(), BLOCK=BLOCK)
        return out


class CastFlattens(Kernels):
    """Casts end to end, and forgets to give the result its shape back."""

    @staticmethod
    def cast(source, dtype):
        return packing.cast(source, dtype).view(-1)
