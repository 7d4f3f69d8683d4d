"""Kernels whose fault shows in no result on a CPU: it is found in PTX, see ``impls/tests/test_kernels_ptx.py``."""

import triton
import triton.language as tl


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


@triton.jit
def holds_too_much(source, target, BLOCK: tl.constexpr):
    """A thread has more elements than registers."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(source + offsets)
    tl.store(target + offsets, x + tl.sum(x, 0))
