"""Configurations, data and simulated published kernels that the optimizer tests share."""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.intervals import Interval
from lockstep.oracle.optimizers import SGD, Adam, AdamState, fractions
from lockstep.oracle.rounding import Float32s, fma_float32

F4 = np.float32
COUNT = 301
SGDS = [
    SGD(0.1),
    SGD(0.1, momentum=0.9),
    SGD(0.05, momentum=0.9, dampening=0.3, weight_decay=0.01),
    SGD(0.05, momentum=0.8, weight_decay=0.1, nesterov=True),
    SGD(0.05, momentum=0.8, weight_decay=0.1, maximize=True),
]
ADAMS = [
    Adam(),
    Adam(1e-2, weight_decay=0.1),
    Adam(1e-2, weight_decay=0.1, decoupled=True),
    Adam(0.1, betas=(0.4, 0.9), eps=1e-3, maximize=True),
]
Moments = tuple[Any, Any, Any]  # parameter, exp_avg, exp_avg_sq: float32 arrays


def data(seed: int, count: int = COUNT, steps: int = 4) -> tuple[Float32s, list[Float32s]]:
    """A parameter and gradients of widely different sizes, some of them zero."""
    rng = np.random.default_rng(seed)
    param = rng.standard_normal(count).astype(F4)
    grads = [(rng.standard_normal(count) * np.exp2(rng.integers(-12, 3, count))).astype(F4) for _ in range(steps)]
    for grad in grads:
        grad[rng.integers(0, count, 5)] = 0
    return param, grads


def float32_start(count: int = COUNT) -> AdamState[Float32s]:
    return AdamState(np.zeros(count, F4), np.zeros(count, F4))


def interval_start(count: int = COUNT) -> AdamState[Interval]:
    return AdamState(Interval.point(np.zeros(count)), Interval.point(np.zeros(count)))


def fraction_start(count: int) -> AdamState[NDArray[Any]]:
    return AdamState(fractions(np.zeros(count)), fractions(np.zeros(count)))


def column(*values: float | Fraction) -> NDArray[Any]:
    """The values as an object array of Fractions."""
    return np.array([Fraction(value) for value in values], dtype=object)


class Kernel:
    """float32 arithmetic in which each product is, at random, rounded or fused into the sum that takes it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def plus(self, x: Any, a: Any, b: Any) -> Any:
        """x + a b in float32."""
        a, b, x = np.broadcast_arrays(np.asarray(a, F4), np.asarray(b, F4), np.asarray(x, F4))
        return np.where(self.rng.random(x.shape) < 0.5, fma_float32(a, b, x), x + a * b)

    def lerp(self, start: Any, end: Any, weight: float) -> Any:
        """torch's, from whichever end is nearer."""
        w = F4(weight)
        return self.plus(start, w, end - start) if w < 0.5 else self.plus(end, -(F4(1) - w), end - start)


def torch_cpu(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """torch on CPU, with every product fused at random: also the decayed parameter into the last sum."""
    if s.weight_decay and not s.decoupled:
        g = k.plus(g, s.weight_decay, p)
    b1, b2 = s.betas
    m = k.lerp(m, g, 1 - b1)
    weighted = F4(1 - b2) * g
    v = k.plus(F4(b2) * v, weighted, g) if k.rng.random() < 0.5 else k.plus(weighted * g, b2, v)
    denominator = np.sqrt(v) / F4((1 - b2**t) ** 0.5) + F4(s.eps)
    update = F4(-s.lr / (1 - b1**t)) * m / denominator
    return (k.plus(update, 1 - s.lr * s.weight_decay, p) if s.decoupled else p + update), m, v


def cuda_fused(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """torch 2.13's fused CUDA kernel: everything in float32, bias corrections from rounded betas."""
    lr, decay, eps, b1, b2 = (F4(x) for x in (s.lr, s.weight_decay, s.eps, *s.betas))
    if s.decoupled:
        p = k.plus(p, -(lr * decay), p)
    elif decay:
        g = k.plus(g, decay, p)
    one, square = np.ones_like(g), g * g
    m = fma_float32(b1 * one, m, fma_float32(-b1 * one, g, g))
    v = fma_float32(b2 * one, v, fma_float32(-b2 * one, square, square))
    step_size = lr / (F4(1) - b1 ** F4(t))
    denominator = np.sqrt(v) / np.sqrt(F4(1) - b2 ** F4(t)) + eps
    return p - step_size * m / denominator, m, v


def cuda_foreach(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """torch's foreach step on CUDA: alpha (g g) and alpha (m / d) where the CPU takes (alpha g) g and (alpha m) / d."""
    if s.decoupled:
        p = p * F4(1 - s.lr * s.weight_decay)
    elif s.weight_decay:
        g = k.plus(g, s.weight_decay, p)
    m = k.lerp(m, g, 1 - s.betas[0])
    v = k.plus(v * F4(s.betas[1]), 1 - s.betas[1], g * g)
    denominator = np.sqrt(v) / F4((1 - s.betas[1] ** t) ** 0.5) + F4(s.eps)
    return k.plus(p, -s.lr / (1 - s.betas[0] ** t), m / denominator), m, v


def float64_scalars(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """A kernel that computes each assignment in float64 and rounds what it stores (torch's first fused CUDA kernel)."""
    b1, b2 = s.betas
    wide, grad = p.astype(np.float64), g.astype(np.float64)
    if s.decoupled:
        p = (wide - s.lr * s.weight_decay * wide).astype(F4)
    elif s.weight_decay:
        grad = (grad + wide * s.weight_decay).astype(F4).astype(np.float64)
    m = (b1 * m.astype(np.float64) + (1 - b1) * grad).astype(F4)
    v = (b2 * v.astype(np.float64) + (1 - b2) * grad * grad).astype(F4)
    denominator = (np.sqrt(v) / F4(np.sqrt(1 - b2**t))).astype(np.float64) + s.eps
    return p - F4(s.lr / (1 - b1**t)) * m / denominator.astype(F4), m, v


def _averages(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s) -> tuple[Any, Any, Any, Any]:
    """Coupled decay and beta x + (1 - beta) y, as written in the paper, in float32."""
    if s.weight_decay and not s.decoupled:
        g = k.plus(g, s.weight_decay, p)
    b1, b2 = F4(s.betas[0]), F4(s.betas[1])
    return k.plus(b1 * m, F4(1) - b1, g), k.plus(b2 * v, (F4(1) - b2) * g, g), b1, b2


def paper(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """Algorithm 1 of Kingma and Ba as it stands: (lr m_hat) / (sqrt(v_hat) + eps)."""
    m, v, b1, b2 = _averages(k, s, p, m, v, g)
    m_hat, v_hat = m / (F4(1) - b1 ** F4(t)), v / (F4(1) - b2 ** F4(t))
    if s.decoupled:
        p = k.plus(p, -(F4(s.lr) * F4(s.weight_decay)), p)
    return p - F4(s.lr) * m_hat / (np.sqrt(v_hat) + F4(s.eps)), m, v


def apex(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """Apex: decoupled decay is added to the update before lr multiplies both."""
    m, v, b1, b2 = _averages(k, s, p, m, v, g)
    m_hat, v_hat = m / (F4(1) - b1 ** F4(t)), v / (F4(1) - b2 ** F4(t))
    update = m_hat / (np.sqrt(v_hat) + F4(s.eps))
    if s.decoupled:
        update = k.plus(update, s.weight_decay, p)
    return k.plus(p, -s.lr, update), m, v


def deepspeed(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """DeepSpeed on CPU: beta**t by repeated products, a reciprocal of the root of the second bias correction."""
    if s.weight_decay and not s.decoupled:
        g = k.plus(g, s.weight_decay, p)
    b1, b2 = F4(s.betas[0]), F4(s.betas[1])
    b1_t, b2_t = b1, b2
    for _ in range(t - 1):
        b1_t, b2_t = b1_t * b1, b2_t * b2
    m = k.plus(g * (F4(1) - b1), b1, m)
    v = k.plus(g * g * (F4(1) - b2), b2, v)
    denominator = k.plus(s.eps, F4(1) / np.sqrt(F4(1) - b2_t), np.sqrt(v))
    if s.decoupled:
        p = k.plus(p, -(F4(s.lr) * F4(s.weight_decay)), p)
    return k.plus(p, -(F4(s.lr) / (F4(1) - b1_t)), m / denominator), m, v


def capturable(k: Kernel, s: Adam, p: Float32s, m: Float32s, v: Float32s, g: Float32s, t: int) -> Moments:
    """torch's capturable step: the step size divides the denominator, as a whole (foreach) or in two parts (single)."""
    if s.decoupled:
        p = p * F4(1 - s.lr * s.weight_decay)
    elif s.weight_decay:
        g = k.plus(g, s.weight_decay, p)
    m = k.lerp(m, g, 1 - s.betas[0])
    v = k.plus(v * F4(s.betas[1]), F4(1 - s.betas[1]) * g, g)
    step_size = F4(s.lr) / (F4(1) - F4(s.betas[0]) ** F4(t))
    root = np.sqrt(F4(1) - F4(s.betas[1]) ** F4(t))
    if k.rng.random() < 0.5:
        return p - m / ((np.sqrt(v) / root + F4(s.eps)) / step_size), m, v
    return p - m / (np.sqrt(v) / (root * step_size) + F4(s.eps) / step_size), m, v


PUBLISHED = [torch_cpu, cuda_fused, cuda_foreach, float64_scalars, paper, apex, deepspeed, capturable]
