"""Every result that a conforming optimizer step may give, as an interval per element.

A *conforming* step does the operations of a known form of SGD or Adam in the given format, each rounded to nearest. Any
product may be fused into the sum that takes it. Gradients may be intervals too, such as a mean taken in unknown order.
``implementations`` selects the known forms:

    "torch cpu"   torch's single-tensor, foreach and fused steps on CPU: hyper-parameters are combined in float64 and
                  rounded once. (Measured, torch 2.13.)
    "any"         also torch on CUDA, foreach, capturable and fused, the papers' own form, Apex and DeepSpeed:
                  coefficients unrounded, or computed in the format itself; other orders of the products; a reciprocal
                  for a quotient. Wider, at t = 1 by 5e-5 of v, because 1 - RN(beta2) is so far from 1 - beta2. (Read
                  from their sources; simulated in the tests, not run.)

A step that follows no known form falls outside, if the data can show it. Examples are eps inside the root or before
bias correction, weight decay of the other kind, and a wrong step count or beta. A wrong scale of all gradients cancels
in Adam's parameters: compare exp_avg and exp_avg_sq, or the gradients.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.oracle.intervals import Interval, hull
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState
from lockstep.oracle.rounding import format_named, round_to_nearest

IMPLEMENTATIONS = ("torch cpu", "any")


def sgd_step_interval(
    settings: SGD,
    param: Interval,
    grad: Interval,
    state: SGDState[Interval],
    form: str = "float32",
    implementations: str = "torch cpu",
) -> tuple[Interval, SGDState[Interval]]:
    """``oracle.optimizers.sgd_step`` with every sum rounded and every product rounded or fused.

    "any": also hyper-parameters kept in float64, and Nesterov's use of the buffer before it is rounded (torch's fused
    CUDA kernel).
    """
    wide = _is_wide(form, implementations)
    lr, momentum = _scalar(form, wide, settings.lr), _scalar(form, wide, settings.momentum)
    one_minus_dampening = _scalar(form, wide, 1 - settings.dampening)
    g = -grad if settings.maximize else grad
    if settings.weight_decay != 0:
        g = _add_product(g, param, _scalar(form, wide, settings.weight_decay), form)
    if settings.momentum == 0:
        return _add_product(param, -g, lr, form), state
    unrounded = g
    if state.momentum_buffer is not None:
        kept = (state.momentum_buffer * momentum).maybe_fused(form)
        unrounded = kept + (g * one_minus_dampening).maybe_fused(form)
    b = unrounded.round(form)
    ahead = hull(b, unrounded) if wide else b
    direction = _add_product(g, ahead, momentum, form) if settings.nesterov else b
    return _add_product(param, -direction, lr, form), SGDState(b)


def adam_step_interval(
    settings: Adam,
    param: Interval,
    grad: Interval,
    state: AdamState[Interval],
    form: str = "float32",
    implementations: str = "torch cpu",
    sqrt_ulps: int = 1,
) -> tuple[Interval, AdamState[Interval]]:
    """``oracle.optimizers.adam_step`` in every known form; ``sqrt_ulps``: floats by which a root may err (MKL: 1).

    ValueError where the denominator may be zero.
    """
    wide = _is_wide(form, implementations)
    beta1, beta2 = settings.betas
    t = state.step + 1
    g = -grad if settings.maximize else grad
    if settings.weight_decay != 0 and not settings.decoupled:
        g = _add_product(g, param, _scalar(form, wide, settings.weight_decay), form)
    m = (_any_average if wide else _lerp)(state.exp_avg, g, beta1, form)
    v = _second_moment(state.exp_avg_sq, g, beta2, form, wide)
    root = v.sqrt().round(form, sqrt_ulps).nonnegative()
    c = _corrections(settings, t, form, wide)
    if wide:
        direction, update = _any_update(settings, m, v, root, c, form, sqrt_ulps)
        new = _any_parameter(settings, param, direction, update, form)
    else:
        new = _torch_parameter(settings, param, m, root, c, form)
    return new, AdamState(m, v, t)


@dataclass(frozen=True)
class _Corrections:
    """1 - beta1**t, 1 - beta2**t, the root of the latter, and lr / (1 - beta1**t)."""

    first: Interval
    second: Interval
    root: Interval
    step_size: Interval


def _corrections(settings: Adam, t: int, form: str, wide: bool) -> _Corrections:
    """Computed in float64 and rounded once; "any": or not rounded, or computed in the format from rounded betas."""
    one, lr = Interval.point(1.0), Interval.point(settings.lr)
    first, second = (one - _power(beta, t) for beta in settings.betas)
    host = [first, second, second.sqrt(), lr.divide_by_positive(first)]
    if not wide:
        return _Corrections(*(x.round(form) for x in host))
    lr = lr.round(form)
    first, second = ((one - _power_in_format(beta, t, form)).maybe_fused(form) for beta in settings.betas)
    device = [first, second, second.sqrt(), lr.divide_by_positive(first)]
    return _Corrections(*(hull(x, y).maybe_fused(form) for x, y in zip(host, device, strict=True)))


def _torch_parameter(
    settings: Adam, param: Interval, m: Interval, root: Interval, c: _Corrections, form: str
) -> Interval:
    """p (1 - lr weight_decay) if decoupled, less (step_size m) / (sqrt(v) / sqrt(1 - beta2**t) + eps)."""
    denominator = (root.divide_by_positive(c.root).round(form) + _scalar(form, False, settings.eps)).round(form)
    update = (m * c.step_size).round(form).divide_by_positive(denominator).round(form)
    if settings.weight_decay != 0 and settings.decoupled:
        param = (param * _scalar(form, False, 1 - settings.lr * settings.weight_decay)).maybe_fused(form)
    return (param - update).round(form)


def _any_parameter(settings: Adam, param: Interval, direction: Interval, update: Interval, form: str) -> Interval:
    """p - update; decoupled, also p - (lr weight_decay) p - update, and Apex's p - lr (u + weight_decay p)."""
    if settings.weight_decay == 0 or not settings.decoupled:
        return (param - update).round(form)
    lr, decay = settings.lr, settings.weight_decay
    in_format = round_to_nearest(lr, form) * round_to_nearest(decay, form)
    ways = (lr * decay, in_format, round_to_nearest(in_format, form))
    shrunk = (param * _scalar(form, True, *(1 - way for way in ways))).maybe_fused(form)
    lost = (param * _scalar(form, True, lr * decay, in_format)).maybe_fused(form)
    kept = hull(shrunk, (param - lost).maybe_fused(form))
    at_once = (direction + (param * _scalar(form, True, decay)).maybe_fused(form)).maybe_fused(form)
    return hull((kept - update).round(form), _add_product(param, -at_once, _scalar(form, True, lr), form))


def _any_update(
    settings: Adam, m: Interval, v: Interval, root: Interval, c: _Corrections, form: str, sqrt_ulps: int
) -> tuple[Interval, Interval]:
    """(u, lr u) with u = m_hat / (sqrt(v_hat) + eps), in every known order of its products and quotients."""

    def over(x: Interval, y: Interval) -> Interval:
        return x.divide_by_positive(y).maybe_fused(form)

    def times(x: Interval, y: Interval) -> Interval:
        return (x * y).maybe_fused(form)

    lr, eps = _scalar(form, True, settings.lr), _scalar(form, True, settings.eps)
    v_hat = over(v, c.second).nonnegative()
    roots = hull(
        over(root, c.root),  # torch
        times(root, over(Interval.point(1.0), c.root)),  # DeepSpeed
        v_hat.sqrt().round(form, sqrt_ulps),  # the paper, Apex
    )
    denominator = (roots + eps).maybe_fused(form)
    m_hat = over(m, c.first)
    direction = over(m_hat, denominator)
    update = hull(
        over(times(m, c.step_size), denominator),  # torch: fused
        times(over(m, denominator), c.step_size),  # torch: foreach on CUDA; DeepSpeed
        over(times(m_hat, lr), denominator),  # the paper
        times(direction, lr),  # Apex
        over(m, over(denominator, c.step_size)),  # torch: capturable, foreach
        over(m, (over(root, times(c.root, c.step_size)) + over(eps, c.step_size)).maybe_fused(form)),  # and single
    )
    return direction, update


def _second_moment(v: Interval, g: Interval, beta2: float, form: str, wide: bool) -> Interval:
    """beta2 v + ((1 - beta2) g) g; "any": also (1 - beta2) (g g), and v + (1 - beta2) (g g - v)."""
    weight = _scalar(form, wide, 1 - beta2, 1 - round_to_nearest(beta2, form))
    weighted = (g * weight).maybe_fused(form) if wide else (g * weight).round(form)
    added = (weighted * g).maybe_fused(form).nonnegative()  # both factors have the sign of g
    new = ((v * _scalar(form, wide, beta2)).maybe_fused(form) + added).round(form)
    if wide:
        new = hull(new, _any_average(v, g.square().maybe_fused(form), beta2, form))
    return new.nonnegative()


def _lerp(start: Interval, end: Interval, beta: float, form: str) -> Interval:
    """torch's lerp by w = 1 - beta: from the start where RN(w) < 1/2, else from the end."""
    weight = round_to_nearest(1 - beta, form)
    if weight < 0.5:
        return _from_start(start, end, _scalar(form, False, weight), form)
    return _from_end(start, end, _scalar(form, False, 1 - weight), form)


def _any_average(start: Interval, end: Interval, beta: float, form: str) -> Interval:
    """Both forms of the lerp, and beta start + (1 - beta) end, with coefficients of any kind."""
    weight = _scalar(form, True, 1 - beta, 1 - round_to_nearest(beta, form))
    kept = _scalar(form, True, beta, 1 - round_to_nearest(1 - beta, form))
    weighted = ((start * kept).maybe_fused(form) + (end * weight).maybe_fused(form)).round(form)
    return hull(weighted, _from_start(start, end, weight, form), _from_end(start, end, kept, form))


def _from_start(start: Interval, end: Interval, weight: Interval, form: str) -> Interval:
    """start + w (end - start)."""
    return _add_product(start, (end - start).round(form), weight, form)


def _from_end(start: Interval, end: Interval, kept: Interval, form: str) -> Interval:
    """end - (1 - w) (end - start)."""
    return _add_product(end, -(end - start).round(form), kept, form)


def _add_product(x: Interval, y: Interval, factor: Interval, form: str) -> Interval:
    """RN(x + factor y), the product rounded or fused."""
    return (x + (y * factor).maybe_fused(form)).round(form)


def _power(beta: float, t: int) -> Interval:
    """beta**t in float64, one float either way: C libraries differ in the last place."""
    power = float(beta**t)
    return Interval(np.array(np.nextafter(power, -np.inf)), np.array(np.nextafter(power, np.inf))).nonnegative()


def _power_in_format(beta: float, t: int, form: str) -> Interval:
    """RN(beta)**t by ``powf`` or by t - 1 products (DeepSpeed): off by a factor within 1 +- 2 max(4, t) u.

    (CUDA C++ Programming Guide: powf errs by at most 4 ulps, each at most 2 u; (1 + u)**t <= 1 + 2 t u for t u <= 1.)
    """
    slack = float(2 * max(4, t) * format_named(form).unit_roundoff)
    return _power(round_to_nearest(beta, form), t) * Interval(np.array(1 - slack), np.array(1 + slack))


def _scalar(form: str, wide: bool, *ways: float) -> Interval:
    """A coefficient: the first way rounded once; "any": every way, rounded or not."""
    if not wide:
        return Interval.point(ways[0]).round(form)
    return hull(*(Interval.point(way).maybe_fused(form) for way in ways))


def _is_wide(form: str, implementations: str) -> bool:
    if form not in ("float32", "float64"):
        raise ValueError(
            f"optimizer steps are enclosed in float32 and float64, not {form}: step float32 masters, or use exact data"
        )
    if implementations not in IMPLEMENTATIONS:
        raise ValueError(f"implementations {implementations!r} must be one of {', '.join(IMPLEMENTATIONS)}")
    return implementations == "any"
