"""Enclosures of optimizer steps checked against simulated kernels of every published form, fused at random."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.intervals import Interval, floats_inside
from lockstep.oracle.optimizer_bits import adam_step_bits, sgd_step_bits
from lockstep.oracle.optimizer_intervals import IMPLEMENTATIONS, adam_step_interval, sgd_step_interval
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState, Values, adam_step
from lockstep.oracle.rounding import Float32s
from lockstep.oracle.tests.optimizer_cases import (
    ADAMS,
    COUNT,
    F4,
    PUBLISHED,
    SGDS,
    Kernel,
    Moments,
    cuda_fused,
    data,
    float32_start,
    interval_start,
    torch_cpu,
)

Form = Callable[[Kernel, Adam, Float32s, Float32s, Float32s, Float32s, int], Moments]


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("implementations", IMPLEMENTATIONS)
def test_both_enclosures_hold_torchs_sgd_fused_or_not(fma: bool, implementations: str) -> None:
    for settings, seed in itertools.product(SGDS, range(2)):
        bits, grads = data(seed)
        inside, enclosed, state = Interval.point(bits), SGDState[Interval](), SGDState[Float32s]()
        for grad in grads:
            bits, state = sgd_step_bits(settings, bits, grad, state, fma)
            inside, enclosed = sgd_step_interval(
                settings, inside, Interval.point(grad), enclosed, implementations=implementations
            )
            assert inside.contains(bits).all()
            if state.momentum_buffer is not None and enclosed.momentum_buffer is not None:
                assert enclosed.momentum_buffer.contains(state.momentum_buffer).all()


def assert_encloses(settings: Adam, form: Form, implementations: str, seed: int, steps: int) -> None:
    kernel = Kernel(seed)
    p, grads = data(seed, steps=steps)
    m, v, inside, state = np.zeros_like(p), np.zeros_like(p), Interval.point(p), interval_start()
    for t, grad in enumerate(grads, start=1):
        p, m, v = form(kernel, settings, p, m, v, -grad if settings.maximize else grad, t)
        assert p.dtype == m.dtype == v.dtype == F4
        inside, state = adam_step_interval(
            settings, inside, Interval.point(grad), state, implementations=implementations
        )
        assert state.exp_avg.contains(m).all()
        assert state.exp_avg_sq.contains(v).all()
        assert inside.contains(p).all()


@pytest.mark.parametrize("settings", ADAMS)
def test_the_narrow_enclosure_holds_torch_on_cpu_with_any_products_fused(settings: Adam) -> None:
    for seed in range(3):
        assert_encloses(settings, torch_cpu, "torch cpu", seed, steps=6)


@pytest.mark.parametrize("form", PUBLISHED)
def test_the_wide_enclosure_holds_every_published_form_of_adam(form: Form) -> None:
    for settings, seed in itertools.product(ADAMS, range(2)):
        assert_encloses(settings, form, "any", seed, steps=6)


FLOAT32 = Adam(lr=float(F4(0.3)), betas=(0.5, 0.75), eps=2.0**-10)  # hyper-parameters are float32 values
PLAIN = replace(FLOAT32, betas=(0.5, 0.0))  # so that all forms of the denominator are one


@pytest.mark.parametrize("form", PUBLISHED)
@pytest.mark.parametrize("settings", [ADAMS[0], FLOAT32, PLAIN, replace(FLOAT32, weight_decay=0.5, decoupled=True)])
def test_the_wide_enclosure_holds_every_bit_of_large_updates_of_small_parameters(form: Form, settings: Adam) -> None:
    """The update's own roundings show: it is larger than p, roots are exact, and so are most coefficients."""
    rng = np.random.default_rng(0)
    count = 4000
    for t in (1, 2, 40):
        p, g, m, v = (rng.standard_normal(count).astype(F4) for _ in range(4))
        p, v = p * F4(2.0**-6 if settings.decoupled else 0.0), v * v * F4(2.0**-8)
        state = AdamState(Interval.point(m), Interval.point(v), t - 1)
        new = form(Kernel(t), settings, p, m, v, g, t)[0]
        inside, _ = adam_step_interval(
            settings, Interval.point(p), Interval.point(g), state, implementations="any", sqrt_ulps=0
        )
        assert inside.contains(new).all()


def test_the_narrow_enclosure_lies_in_the_wide_one_and_is_mostly_a_single_float_after_one_step() -> None:
    for settings in ADAMS:
        param, (grad, *_) = data(3)
        start = Interval.point(param), Interval.point(grad), interval_start()
        narrow, narrow_state = adam_step_interval(settings, *start)
        wide, wide_state = adam_step_interval(settings, *start, implementations="any")
        for a, b in (
            (narrow, wide),
            (narrow_state.exp_avg, wide_state.exp_avg),
            (narrow_state.exp_avg_sq, wide_state.exp_avg_sq),
        ):
            assert ((b.low <= a.low) & (a.high <= b.high)).all()
        assert (floats_inside(narrow, "float32") == 1).mean() > 0.5


def test_coefficients_computed_in_float32_fall_outside_the_narrow_enclosure() -> None:
    """1 - RN(0.999) is 4.7e-5 from 0.001: torch's fused CUDA kernel needs "any", and would be seen without it."""
    p, (grad, *_) = data(0)
    zero = np.zeros_like(p)
    _, _, v = cuda_fused(Kernel(0), ADAMS[0], p, zero, zero, grad, 1)
    _, state = adam_step_interval(ADAMS[0], Interval.point(p), Interval.point(grad), interval_start())
    assert not state.exp_avg_sq.contains(v)[grad != 0].any()


def test_the_wide_enclosure_holds_cuda_sgd_with_float64_scalars_and_an_unrounded_buffer() -> None:
    for settings in SGDS[:4]:
        p, grads = data(5, count=3000)
        inside, state = Interval.point(p), SGDState[Interval]()
        buffer = np.zeros(p.shape)
        for t, grad in enumerate(grads):
            g = (grad + settings.weight_decay * p.astype(np.float64)).astype(F4)
            exact = settings.momentum * buffer + (1 - settings.dampening) * g if t else g.astype(np.float64)
            buffer = exact.astype(F4).astype(np.float64)
            ahead = (g + settings.momentum * exact).astype(F4)
            direction = ahead if settings.nesterov else buffer if settings.momentum else g
            p = (p - settings.lr * direction.astype(np.float64)).astype(F4)
            inside, state = sgd_step_interval(settings, inside, Interval.point(grad), state, implementations="any")
            assert inside.contains(p).all()


def ball(center: Float32s, radius: Float32s) -> Interval:
    return Interval((center - radius).astype(np.float64), (center + radius).astype(np.float64))


@pytest.mark.parametrize("implementations", IMPLEMENTATIONS)
@pytest.mark.parametrize("settings", ADAMS)
def test_a_step_from_any_gradient_of_an_interval_stays_inside(settings: Adam, implementations: str) -> None:
    rng = np.random.default_rng(7)
    bits, grads = data(7)
    inside, enclosed, state = Interval.point(bits), interval_start(), float32_start()
    for grad in grads:
        radius = np.abs(grad) * F4(2.0**-20)
        member = np.clip((grad + radius * rng.uniform(-1, 1, COUNT)).astype(F4), grad - radius, grad + radius)
        assert ball(grad, radius).contains(member).all()
        inside, enclosed = adam_step_interval(
            settings, inside, ball(grad, radius), enclosed, implementations=implementations
        )
        bits, state = adam_step_bits(settings, bits, member, state)
        assert inside.contains(bits).all()


@pytest.mark.parametrize("settings", SGDS)
def test_an_sgd_step_from_any_gradient_of_an_interval_stays_inside(settings: SGD) -> None:
    bits, grads = data(8)
    inside, enclosed, state = Interval.point(bits), SGDState[Interval](), SGDState[Float32s]()
    for sign, grad in zip((1, -1, 1, -1), grads, strict=True):
        radius = np.abs(grad) * F4(2.0**-20)
        inside, enclosed = sgd_step_interval(settings, inside, ball(grad, radius), enclosed)
        bits, state = sgd_step_bits(settings, bits, grad + F4(sign) * radius, state)
        assert inside.contains(bits).all()


def test_enclosures_in_float64_hold_float64_steps_and_are_narrow() -> None:
    param, grads = data(8)
    p, inside, enclosed = param.astype(np.float64), Interval.point(param), interval_start()
    state = AdamState[Values](np.zeros(COUNT), np.zeros(COUNT))
    for grad in grads:
        p, state = adam_step(ADAMS[2], p, grad.astype(np.float64), state)
        inside, enclosed = adam_step_interval(
            ADAMS[2], inside, Interval.point(grad), enclosed, "float64", implementations="any"
        )
        assert inside.contains(p).all()
    assert (inside.high - inside.low < 2.0**-40 * (1 + np.abs(p))).all()


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ADAMS[2], decoupled=False),
        replace(ADAMS[2], betas=(0.9, 0.99)),
        replace(ADAMS[2], betas=(0.91, 0.999)),
        replace(ADAMS[2], lr=1e-2 * (1 + 1e-5)),
        replace(ADAMS[2], weight_decay=0.11),
        replace(ADAMS[2], maximize=True),
    ],
)
def test_one_wrong_hyper_parameter_falls_outside(wrong: Adam) -> None:
    param, (grad, *_) = data(9)
    p, state = adam_step_bits(wrong, param, grad, float32_start())
    inside, enclosed = adam_step_interval(ADAMS[2], Interval.point(param), Interval.point(grad), interval_start())
    seen = [
        inside.contains(p),
        enclosed.exp_avg.contains(state.exp_avg),
        enclosed.exp_avg_sq.contains(state.exp_avg_sq),
    ]
    assert not np.array(seen).all()


ZERO = Interval.point(np.zeros(1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sgd_step_interval(SGD(0.1), ZERO, ZERO, SGDState(), "bfloat16"), "bfloat16"),
        (lambda: sgd_step_interval(SGD(0.1), ZERO, ZERO, SGDState(), implementations="cuda"), "cuda"),
        (lambda: adam_step_interval(Adam(eps=0.0), ZERO, ZERO, interval_start(1)), "positive"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
