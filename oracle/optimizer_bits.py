"""The float32 steps of torch's CPU optimizers, bit for bit, from the order and the fusion of their operations.

It holds for ``foreach=True`` and ``foreach=False``, which give the same bits; ``fused=True`` uses other formulas.
Source: ``torch/optim/sgd.py`` and ``adam.py`` for the operations; measured with torch 2.13 (AVX2, AVX-512 and
``default``) for how each of them rounds. Hyper-parameters are combined in float64 and rounded to float32 once.

``fma``: whether the vectorized kernels fuse (they do unless ``torch.backends.cpu.get_cpu_capability()`` is "DEFAULT").
"""

from collections.abc import Callable

import numpy as np

from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState
from lockstep.oracle.rounding import Float32s, fma_float32


def sgd_step_bits(
    settings: SGD, param: Float32s, grad: Float32s, state: SGDState[Float32s], fma: bool = True
) -> tuple[Float32s, SGDState[Float32s]]:
    """``oracle.optimizers.sgd_step`` as torch computes it; every sum is add(x, y, alpha) = x + alpha y.

    b <- add(momentum b, g, 1 - dampening); d = add(g, b, momentum); p <- add(p, d, -lr).
    """
    g = -grad if settings.maximize else grad
    if settings.weight_decay != 0:
        g = _add(g, param, settings.weight_decay, fma)
    if settings.momentum == 0:
        return _add(param, g, -settings.lr, fma), state
    b = state.momentum_buffer
    b = g if b is None else _add(b * np.float32(settings.momentum), g, 1 - settings.dampening, fma)
    direction = _add(g, b, settings.momentum, fma) if settings.nesterov else b
    return _add(param, direction, -settings.lr, fma), SGDState(b)


def adam_step_bits(
    settings: Adam,
    param: Float32s,
    grad: Float32s,
    state: AdamState[Float32s],
    fma: bool = True,
    sqrt: Callable[[Float32s], Float32s] = np.sqrt,
) -> tuple[Float32s, AdamState[Float32s]]:
    """``oracle.optimizers.adam_step`` as torch computes it.

    AdamW: p <- p (1 - lr weight_decay);  Adam: g <- add(g, p, weight_decay)
    m <- lerp(m, g, 1 - beta1);  v <- addcmul(beta2 v, g, g, 1 - beta2)
    p <- p + (-step_size m) / (sqrt(v) / c + eps), step_size = lr / (1 - beta1**t), c = sqrt(1 - beta2**t)

    ``sqrt`` is a parameter because torch's float32 square root on CPU is not correctly rounded (measured: 17 % of
    values are one float off): the moments are exact with any, the parameter only with torch's own.
    """
    beta1, beta2 = settings.betas
    t = state.step + 1
    g = -grad if settings.maximize else grad
    if settings.weight_decay != 0 and settings.decoupled:
        param = param * np.float32(1 - settings.lr * settings.weight_decay)
    elif settings.weight_decay != 0:
        g = _add(g, param, settings.weight_decay, fma)
    m = _lerp(state.exp_avg, g, 1 - beta1, fma)
    v = _multiply_add(np.float32(1 - beta2) * g, g, state.exp_avg_sq * np.float32(beta2), fma)
    step_size, c = settings.lr / (1 - beta1**t), (1 - beta2**t) ** 0.5
    denominator = sqrt(v) / np.float32(c) + np.float32(settings.eps)
    return param + (np.float32(-step_size) * m) / denominator, AdamState(m, v, t)


def _add(x: Float32s, y: Float32s, alpha: float, fma: bool) -> Float32s:
    """``x.add(y, alpha=alpha)`` = RN(x + alpha y), or RN(x + RN(alpha y)) unfused."""
    return _multiply_add(np.float32(alpha), y, x, fma)


def _lerp(start: Float32s, end: Float32s, weight: float, fma: bool) -> Float32s:
    """``start.lerp(end, weight)``: start + w (end - start) where w < 1/2, else end - (1 - w) (end - start)."""
    w, difference = np.float32(weight), end - start
    if abs(w) < 0.5:
        return _multiply_add(w, difference, start, fma)
    return _multiply_add(np.float32(1) - w, -difference, end, fma)


def _multiply_add(a: Float32s | np.float32, b: Float32s, c: Float32s, fma: bool) -> Float32s:
    return fma_float32(np.asarray(a), b, c) if fma else np.asarray(a) * b + c
