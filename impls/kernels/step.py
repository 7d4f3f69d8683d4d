"""ZeRO's shard step in mixed precision: float32 masters are updated, and the parameter is written in the same pass.

The formulas are torch's (``oracle/optimizer_bits.py`` without fusion), operation by operation: hyper-parameters are
combined in float64 and rounded to float32 once, every product and sum is rounded, division and square root correctly.
So the bits are the oracle's, for any cut into shards.
"""

import math
import struct

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.launch import LARGER, Launcher, address, require_kernels
from lockstep.impls.kernels.pack import check_coefficient
from lockstep.impls.kernels.table import NUMBERS, VECTOR, kind_of
from lockstep.impls.kernels.words import from_float32, pointer, to_float32, transform

BLOCK = 1024 * LARGER  # elements that one program handles: 18 to 28 kilobytes of all arrays


def sgd_step(
    param: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    momentum_buffer: torch.Tensor | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    first: bool = False,
    scale: float = 1.0,
    coefficient: torch.Tensor | None = None,
) -> None:
    """g = grad * scale * coefficient + weight_decay * master;  b = g if ``first``, else momentum * b + g;
    master -= lr * b (or g, without momentum);  param = master, rounded.

    All are one-dimensional, contiguous and equally long; master and momentum_buffer float32, the others float32,
    bfloat16 or float16. param and master may be one tensor.
    """
    if (momentum != 0) != (momentum_buffer is not None):
        raise ValueError(f"momentum {momentum} with momentum_buffer {momentum_buffer}: give both or neither")
    states = [] if momentum_buffer is None else [momentum_buffer]
    if not _check(param, master, grad, states, coefficient):
        return
    last = master if momentum_buffer is None else momentum_buffer
    addresses = [array.data_ptr() for array in (param, master, grad, last)]
    _SGD(
        -(-param.numel() // BLOCK),
        (
            *addresses,
            param.numel(),
            float(scale),
            address(coefficient),
            float(lr),
            float(momentum),
            float(weight_decay),
        ),
        PARAM=kind_of(param.dtype, False),
        GRAD=kind_of(grad.dtype, False),
        CLIP=coefficient is not None,
        DECAY=weight_decay != 0,
        MOMENTUM=momentum_buffer is not None,
        FIRST=first,
        ALIGNED=not any(each % VECTOR for each in addresses),  # shards seldom begin elsewhere
        BLOCK=BLOCK,
    )


def adamw_step(
    param: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    scale: float = 1.0,
    coefficient: torch.Tensor | None = None,
) -> None:
    """AdamW's step number ``step``, from 1, with g = grad * scale * coefficient:

    p = master * (1 - lr * weight_decay);  m = m + (1 - beta1) * (g - m);  v = beta2 * v + ((1 - beta2) * g) * g
    master = p + (-lr / (1 - beta1**t) * m) / (sqrt(v) / sqrt(1 - beta2**t) + eps);  param = master, rounded.

    m is taken from its other end, g - beta1 * (g - m), where 1 - beta1 is at least 1/2, as torch's lerp does. Shapes
    and dtypes as in `sgd_step`.
    """
    if step < 1:
        raise ValueError(f"step {step} must be at least 1: it counts from 1")
    if not _check(param, master, grad, [exp_avg, exp_avg_sq], coefficient):
        return
    beta1, beta2 = betas
    weight = _float32(1 - beta1)
    near = abs(weight) < 0.5
    addresses = [array.data_ptr() for array in (param, master, grad, exp_avg, exp_avg_sq)]
    _ADAMW(
        -(-param.numel() // BLOCK),
        (
            *addresses,
            param.numel(),
            float(scale),
            address(coefficient),
            1 - lr * weight_decay,
            weight if near else _float32(1 - weight),
            float(beta2),
            1 - beta2,
            -(lr / (1 - beta1**step)),
            math.sqrt(1 - beta2**step),
            float(eps),
        ),
        PARAM=kind_of(param.dtype, False),
        GRAD=kind_of(grad.dtype, False),
        CLIP=coefficient is not None,
        DECAY=weight_decay != 0,
        NEAR=near,
        ALIGNED=not any(each % VECTOR for each in addresses),  # shards seldom begin elsewhere
        BLOCK=BLOCK,
    )


def _float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def _check(
    param: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    states: list[torch.Tensor],
    coefficient: torch.Tensor | None,
) -> bool:
    """True if there is anything to do. Raises ValueError for arrays that do not fit together."""
    shape, place = param.shape, param.get_device()
    for tensor in (param, master, grad, *states):
        if tensor.shape != shape or len(shape) != 1 or not tensor.is_contiguous():
            got = f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            raise ValueError(f"a shard's arrays are contiguous and of {param.numel()} elements: one has {got}")
        if tensor.get_device() != place:
            raise ValueError(f"a shard's arrays are on one device: {tensor.device} and {param.device} are two")
        if tensor.dtype not in NUMBERS:
            raise ValueError(f"a shard's array is {tensor.dtype}: it must be float32, bfloat16 or float16")
    for tensor in (master, *states):
        if tensor.dtype != torch.float32:
            raise ValueError(f"masters and optimizer state are float32, not {tensor.dtype}")
    check_coefficient(coefficient, param)
    require_kernels(param.device)
    return param.numel() > 0


@triton.jit
def _array(address, KIND: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Pointers to a program's elements. Where vectors can be read, the compiler is told: of four elements, so that a
    thread has the same ones of every array.
    """
    elements = pointer(address, KIND) + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ALIGNED:
        elements = tl.multiple_of(elements, 8 if KIND > 0 else 16)
    return elements


@triton.jit(do_not_specialize=["param", "master", "grad", "momentum_buffer", "count", "coefficient"])
def _sgd(
    param: tl.int64,
    master: tl.int64,
    grad: tl.int64,
    momentum_buffer: tl.int64,
    count: tl.int64,
    scale,
    coefficient: tl.int64,
    lr,
    momentum,
    decay,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    CLIP: tl.constexpr,
    DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    FIRST: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    factor = scale
    if CLIP:
        factor = tl.load(pointer(coefficient, 0))
    # A full block has no mask: with one, accesses would be as narrow as an element. Pointers are made in each branch:
    # shared, elements would go through shared memory from one layout to another.
    if count - start >= BLOCK:
        _sgd_block(
            param, master, grad, momentum_buffer, None, scale, factor, lr, momentum, decay,
            PARAM, GRAD, CLIP, DECAY, MOMENTUM, FIRST, ALIGNED, BLOCK,
        )  # fmt: skip
    else:
        inside = tl.arange(0, BLOCK) < count - start
        _sgd_block(
            param, master, grad, momentum_buffer, inside, scale, factor, lr, momentum, decay,
            PARAM, GRAD, CLIP, DECAY, MOMENTUM, FIRST, ALIGNED, BLOCK,
        )  # fmt: skip


@triton.jit
def _sgd_block(
    param,
    master,
    grad,
    momentum_buffer,
    inside,
    scale,
    factor,
    lr,
    momentum,
    decay,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    CLIP: tl.constexpr,
    DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    FIRST: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    param = _array(param, PARAM, ALIGNED, BLOCK)
    master = _array(master, 0, ALIGNED, BLOCK)
    grad = _array(grad, GRAD, ALIGNED, BLOCK)
    momentum_buffer = _array(momentum_buffer, 0, ALIGNED, BLOCK)
    g = transform(to_float32(tl.load(grad, inside), GRAD), 1.0, scale, factor, False, CLIP)
    p = tl.load(master, inside)
    if DECAY:
        g = g + decay * p
    if MOMENTUM:
        if not FIRST:
            g = tl.load(momentum_buffer, inside) * momentum + g
        tl.store(momentum_buffer, g, inside)
    p = p - lr * g
    tl.store(master, p, inside)
    tl.store(param, from_float32(p, PARAM), inside)


@triton.jit(do_not_specialize=["param", "master", "grad", "exp_avg", "exp_avg_sq", "count", "coefficient"])
def _adamw(
    param: tl.int64,
    master: tl.int64,
    grad: tl.int64,
    exp_avg: tl.int64,
    exp_avg_sq: tl.int64,
    count: tl.int64,
    scale,
    coefficient: tl.int64,
    decay,
    beta1,
    beta2,
    weight2,
    step_size,
    correction,
    eps,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    CLIP: tl.constexpr,
    DECAY: tl.constexpr,
    NEAR: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    factor = scale
    if CLIP:
        factor = tl.load(pointer(coefficient, 0))
    if count - start >= BLOCK:
        _adamw_block(
            param, master, grad, exp_avg, exp_avg_sq, None, scale, factor,
            decay, beta1, beta2, weight2, step_size, correction, eps, PARAM, GRAD, CLIP, DECAY, NEAR, ALIGNED, BLOCK,
        )  # fmt: skip
    else:
        inside = tl.arange(0, BLOCK) < count - start
        _adamw_block(
            param, master, grad, exp_avg, exp_avg_sq, inside, scale, factor,
            decay, beta1, beta2, weight2, step_size, correction, eps, PARAM, GRAD, CLIP, DECAY, NEAR, ALIGNED, BLOCK,
        )  # fmt: skip


@triton.jit
def _adamw_block(
    param,
    master,
    grad,
    exp_avg,
    exp_avg_sq,
    inside,
    scale,
    factor,
    decay,
    beta1,
    beta2,
    weight2,
    step_size,
    correction,
    eps,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    CLIP: tl.constexpr,
    DECAY: tl.constexpr,
    NEAR: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    param = _array(param, PARAM, ALIGNED, BLOCK)
    master = _array(master, 0, ALIGNED, BLOCK)
    grad = _array(grad, GRAD, ALIGNED, BLOCK)
    exp_avg = _array(exp_avg, 0, ALIGNED, BLOCK)
    exp_avg_sq = _array(exp_avg_sq, 0, ALIGNED, BLOCK)
    g = transform(to_float32(tl.load(grad, inside), GRAD), 1.0, scale, factor, False, CLIP)
    p = tl.load(master, inside)
    m = tl.load(exp_avg, inside)
    v = tl.load(exp_avg_sq, inside)
    if DECAY:
        p = p * decay
    if NEAR:
        m = m + beta1 * (g - m)
    else:
        m = g - beta1 * (g - m)
    v = v * beta2 + (weight2 * g) * g
    denominator = tl.div_rn(tl.sqrt_rn(v), correction) + eps
    p = p + tl.div_rn(step_size * m, denominator)
    tl.store(exp_avg, m, inside)
    tl.store(exp_avg_sq, v, inside)
    tl.store(master, p, inside)
    tl.store(param, from_float32(p, PARAM), inside)


_SGD = Launcher(_sgd)
_ADAMW = Launcher(_adamw)
