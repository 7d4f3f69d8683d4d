"""ZeRO's shard step in mixed precision: float32 masters are updated, and the parameter is written in the same pass.

The formulas are torch's (``oracle/optimizer_bits.py`` without fusion), operation by operation: hyper-parameters are
combined in float64 and rounded to float32 once, every product and sum is rounded, division and square root correctly.
So the bits are the oracle's, for any cut into shards.
"""

import math

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.pack import check_coefficient
from lockstep.impls.kernels.table import NUMBERS, WARPS, carried, kind_of, require_kernels
from lockstep.impls.kernels.words import from_float32, to_float32, transform

BLOCK = 4096  # elements that one program handles: fewer than where there are fewer arrays


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
    _sgd[(triton.cdiv(param.numel(), BLOCK),)](
        carried(param, False),
        master,
        carried(grad, False),
        momentum_buffer,
        param.numel(),
        float(scale),
        coefficient,
        float(lr),
        float(momentum),
        float(weight_decay),
        PARAM=kind_of(param.dtype, False),
        GRAD=kind_of(grad.dtype, False),
        DECAY=weight_decay != 0,
        FIRST=first,
        BLOCK=BLOCK,
        num_warps=WARPS,
        enable_fp_fusion=False,
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
    _adamw[(triton.cdiv(param.numel(), BLOCK),)](
        carried(param, False),
        master,
        carried(grad, False),
        exp_avg,
        exp_avg_sq,
        param.numel(),
        float(scale),
        coefficient,
        1 - lr * weight_decay,
        weight if near else _float32(1 - weight),
        float(beta2),
        1 - beta2,
        -(lr / (1 - beta1**step)),
        math.sqrt(1 - beta2**step),
        float(eps),
        PARAM=kind_of(param.dtype, False),
        GRAD=kind_of(grad.dtype, False),
        DECAY=weight_decay != 0,
        NEAR=near,
        BLOCK=BLOCK,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )


def _float32(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float32))


def _check(
    param: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    states: list[torch.Tensor],
    coefficient: torch.Tensor | None,
) -> bool:
    """Whether there is anything to do. ValueError for arrays that do not fit together."""
    for tensor in (param, master, grad, *states):
        if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.numel() != param.numel():
            got = f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            raise ValueError(f"a shard's arrays are contiguous and of {param.numel()} elements: one has {got}")
        if tensor.device != param.device:
            raise ValueError(f"a shard's arrays are on one device: {tensor.device} and {param.device} are two")
        if tensor.dtype not in NUMBERS:
            raise ValueError(f"a shard's array is {tensor.dtype}: it must be float32, bfloat16 or float16")
    for tensor in (master, *states):
        if tensor.dtype != torch.float32:
            raise ValueError(f"masters and optimizer state are float32, not {tensor.dtype}")
    check_coefficient(coefficient, param)
    require_kernels(param.device)
    return param.numel() > 0


@triton.jit(do_not_specialize=["count"])
def _sgd(
    param,
    master,
    grad,
    momentum_buffer,
    count,
    scale,
    coefficient,
    lr,
    momentum,
    decay,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    DECAY: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr = tl.int64,
):
    start = tl.program_id(0).to(INDEX) * BLOCK
    # A full block has no mask: with one, loads would be as narrow as an element.
    if count - start >= BLOCK:
        offsets = start + tl.arange(0, BLOCK).to(INDEX)
        _sgd_block(
            param, master, grad, momentum_buffer, offsets, None, scale, coefficient, lr, momentum, decay,
            PARAM, GRAD, DECAY, FIRST,
        )  # fmt: skip
    else:
        offsets = start + tl.arange(0, BLOCK).to(INDEX)
        _sgd_block(
            param, master, grad, momentum_buffer, offsets, offsets < count, scale, coefficient, lr, momentum, decay,
            PARAM, GRAD, DECAY, FIRST,
        )  # fmt: skip


@triton.jit
def _sgd_block(
    param,
    master,
    grad,
    momentum_buffer,
    offsets,
    inside,
    scale,
    coefficient,
    lr,
    momentum,
    decay,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    DECAY: tl.constexpr,
    FIRST: tl.constexpr,
):
    g = transform(to_float32(tl.load(grad + offsets, inside), GRAD), 1.0, scale, coefficient, False)
    p = tl.load(master + offsets, inside)
    if DECAY:
        g = g + decay * p
    if momentum_buffer is not None:
        if not FIRST:
            g = tl.load(momentum_buffer + offsets, inside) * momentum + g
        tl.store(momentum_buffer + offsets, g, inside)
    p = p - lr * g
    tl.store(master + offsets, p, inside)
    tl.store(param + offsets, from_float32(p, PARAM), inside)


@triton.jit(do_not_specialize=["count"])
def _adamw(
    param,
    master,
    grad,
    exp_avg,
    exp_avg_sq,
    count,
    scale,
    coefficient,
    decay,
    beta1,
    beta2,
    weight2,
    step_size,
    correction,
    eps,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    DECAY: tl.constexpr,
    NEAR: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr = tl.int64,
):
    start = tl.program_id(0).to(INDEX) * BLOCK
    if count - start >= BLOCK:
        offsets = start + tl.arange(0, BLOCK).to(INDEX)
        _adamw_block(
            param, master, grad, exp_avg, exp_avg_sq, offsets, None, scale, coefficient,
            decay, beta1, beta2, weight2, step_size, correction, eps, PARAM, GRAD, DECAY, NEAR,
        )  # fmt: skip
    else:
        offsets = start + tl.arange(0, BLOCK).to(INDEX)
        _adamw_block(
            param, master, grad, exp_avg, exp_avg_sq, offsets, offsets < count, scale, coefficient,
            decay, beta1, beta2, weight2, step_size, correction, eps, PARAM, GRAD, DECAY, NEAR,
        )  # fmt: skip


@triton.jit
def _adamw_block(
    param,
    master,
    grad,
    exp_avg,
    exp_avg_sq,
    offsets,
    inside,
    scale,
    coefficient,
    decay,
    beta1,
    beta2,
    weight2,
    step_size,
    correction,
    eps,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    DECAY: tl.constexpr,
    NEAR: tl.constexpr,
):
    g = transform(to_float32(tl.load(grad + offsets, inside), GRAD), 1.0, scale, coefficient, False)
    p = tl.load(master + offsets, inside)
    m = tl.load(exp_avg + offsets, inside)
    v = tl.load(exp_avg_sq + offsets, inside)
    if DECAY:
        p = p * decay
    if NEAR:
        m = m + beta1 * (g - m)
    else:
        m = g - beta1 * (g - m)
    v = v * beta2 + (weight2 * g) * g
    denominator = tl.div_rn(tl.sqrt_rn(v), correction) + eps
    p = p + tl.div_rn(step_size * m, denominator)
    tl.store(exp_avg + offsets, m, inside)
    tl.store(exp_avg_sq + offsets, v, inside)
    tl.store(master + offsets, p, inside)
    tl.store(param + offsets, from_float32(p, PARAM), inside)
