"""Optimizer steps checked against closed forms in Fractions, and torch's float32 steps against rounding by hand."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.optimizer_bits import adam_step_bits, sgd_step_bits
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState, Values, adam_step, fractions, sgd_step
from lockstep.oracle.rounding import Float32s, round_to_nearest, sqrt_below
from lockstep.oracle.tests.optimizer_cases import ADAMS, SGDS, column, data, float32_start, fraction_start

HALF = Fraction(1, 2)


# The textbook


def test_momentum_is_a_geometric_sum_whose_first_gradient_is_not_dampened() -> None:
    settings = SGD(lr=0.5, momentum=0.25, dampening=0.5)
    grads = [column(k, -3 * k) for k in (1, 4, 9, 16)]
    start = param = column(100, 7)
    state = SGDState[Values]()
    moved = column(0, 0)
    for t, grad in enumerate(grads, start=1):
        param, state = sgd_step(settings, param, grad, state)
        weights = [Fraction(1, 4) ** (t - 1 - i) * (1 if i == 0 else HALF) for i in range(t)]
        buffer: Values = sum((w * g for w, g in zip(weights, grads, strict=False)), column(0, 0))
        assert state.momentum_buffer is not None
        assert (state.momentum_buffer == buffer).all()
        moved = moved + HALF * buffer
        assert (param == start - moved).all()


def test_nesterov_is_one_look_ahead_and_without_momentum_there_is_no_state() -> None:
    p, g = column(1), column(8)
    first, state = sgd_step(SGD(0.5, momentum=0.5, nesterov=True), p, g, SGDState())
    assert first == 1 - HALF * (8 + 4)
    second, _ = sgd_step(SGD(0.5, momentum=0.5, nesterov=True), first, g, state)
    assert second == first - HALF * (8 + HALF * (4 + 8))
    assert sgd_step(SGD(0.5), p, g, SGDState())[1].momentum_buffer is None


def test_weight_decay_of_sgd_is_the_gradient_of_a_square_and_maximize_does_not_turn_it() -> None:
    p, g = column(4), column(1)
    assert sgd_step(SGD(0.5, weight_decay=0.25), p, g, SGDState())[0] == 4 - HALF * (1 + 1)
    assert sgd_step(SGD(0.5, weight_decay=0.25, maximize=True), p, g, SGDState())[0] == 4 - HALF * (-1 + 1)


def test_under_a_constant_gradient_bias_correction_makes_every_adam_step_the_same() -> None:
    """m_hat = g and v_hat = g**2 exactly at every t, so p moves by lr g / (|g| + eps)."""
    settings = Adam(lr=0.5, betas=(0.9, 0.99), eps=0.25)
    p, g, state = column(1, 1), column(3, -0.75), fraction_start(2)
    for t in range(1, 5):
        p, state = adam_step(settings, p, g, state)
        assert state.step == t
        assert p.tolist() == [1 - t * HALF * Fraction(12, 13), 1 + t * HALF * Fraction(3, 4)]


def test_moments_are_geometric_sums_of_gradients_and_of_squares() -> None:
    p, state = column(0), fraction_start(1)
    for g in (3, -1, 5):
        p, state = adam_step(Adam(betas=(0.5, 0.25)), p, column(g), state)
    assert state.exp_avg == HALF * (Fraction(3, 4) - HALF + 5)
    assert state.exp_avg_sq == Fraction(3, 4) * (Fraction(9, 16) + Fraction(1, 4) + 25)


def test_with_zero_betas_and_eps_adam_steps_by_the_sign_and_any_scale_of_the_gradients_cancels() -> None:
    settings = Adam(lr=0.25, betas=(0.0, 0.0), eps=0.0)
    for scale in (1, 7, Fraction(1, 3)):
        p, _ = adam_step(settings, column(1, 1, 1), scale * column(3, -0.5, 1e-30), fraction_start(3))
        assert p.tolist() == [Fraction(3, 4), Fraction(5, 4), Fraction(3, 4)]


def test_decoupled_decay_shrinks_the_parameter_and_leaves_the_moments_alone() -> None:
    coupled = Adam(lr=0.5, weight_decay=0.5, eps=1.0)
    p, g = column(8), column(2)
    plain, _ = adam_step(replace(coupled, weight_decay=0.0), p, g, fraction_start(1))
    decayed, state = adam_step(replace(coupled, decoupled=True), p, g, fraction_start(1))
    assert decayed == plain - HALF * HALF * 8
    assert state.exp_avg == (1 - Fraction(0.9)) * 2
    assert adam_step(coupled, p, g, fraction_start(1))[1].exp_avg == (1 - Fraction(0.9)) * (2 + 4)


@pytest.mark.parametrize("settings", ADAMS)
def test_the_float64_step_follows_the_exact_one(settings: Adam) -> None:
    """A few roundings of 2**-53 each lie between them; a wrong formula would be off by far more than 2**-40."""
    param, grads = data(1, count=8, steps=3)
    real, exact = param.astype(np.float64), fractions(param)
    real_state, exact_state = AdamState[Values](np.zeros(8), np.zeros(8)), fraction_start(8)
    for grad in grads:
        real, real_state = adam_step(settings, real, grad.astype(np.float64), real_state)
        exact, exact_state = adam_step(settings, exact, fractions(grad), exact_state)
    assert all(abs(a - b) <= Fraction(8, 2**40) for a, b in zip(fractions(real), exact, strict=True))


# torch's float32 steps by hand


def rounded(value: Fraction | float) -> Fraction:
    return Fraction(round_to_nearest(value, "float32"))


def plus(x: Fraction, alpha: float, y: Fraction, fma: bool) -> Fraction:
    """x + alpha y, the product rounded or fused."""
    term = rounded(alpha) * y
    return rounded(x + (term if fma else rounded(term)))


@pytest.mark.parametrize("fma", [True, False])
def test_the_bits_of_sgd_are_those_of_fractions_rounded_where_torch_rounds(fma: bool) -> None:
    settings = SGDS[2]
    param, grads = data(2, count=6, steps=3)
    p, state = param, SGDState[Float32s]()
    for grad in grads:
        p, state = sgd_step_bits(settings, p, grad, state, fma)
    for i in range(6):
        x, b = Fraction(float(param[i])), Fraction(0)
        for t, grad in enumerate(grads):
            g = plus(Fraction(float(grad[i])), settings.weight_decay, x, fma)
            b = plus(rounded(rounded(settings.momentum) * b), 1 - settings.dampening, g, fma) if t else g
            x = plus(x, -settings.lr, b, fma)
        assert state.momentum_buffer is not None
        assert [p[i], state.momentum_buffer[i]] == [x, b]


@pytest.mark.parametrize("fma", [True, False])
def test_the_bits_of_adamw_are_those_of_fractions_rounded_where_torch_rounds(fma: bool) -> None:
    settings = ADAMS[2]
    (b1, b2), lr = settings.betas, settings.lr
    param, grads = data(2, count=6, steps=3)
    p, state = param, float32_start(6)
    for grad in grads:
        p, state = adam_step_bits(settings, p, grad, state, fma)
    for i in range(6):
        x, m, v = Fraction(float(param[i])), Fraction(0), Fraction(0)
        for t, grad in enumerate(grads, start=1):
            g = Fraction(float(grad[i]))
            x = rounded(x * rounded(1 - lr * settings.weight_decay))
            m = plus(m, 1 - b1, rounded(g - m), fma)
            square = rounded(rounded(1 - b2) * g) * g
            v = rounded(rounded(rounded(b2) * v) + (square if fma else rounded(square)))
            root = rounded(rounded(sqrt_below(v)) / rounded((1 - b2**t) ** 0.5))
            x = rounded(x + rounded(rounded(rounded(-lr / (1 - b1**t)) * m) / rounded(root + rounded(settings.eps))))
        assert [p[i], state.exp_avg[i], state.exp_avg_sq[i]] == [x, m, v]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: SGD(-0.1), "lr -0.1"),
        (lambda: SGD(0.1, momentum=-1.0), "momentum -1.0"),
        (lambda: SGD(float("nan")), "nan"),
        (lambda: SGD(0.1, nesterov=True), "nesterov"),
        (lambda: SGD(0.1, 0.9, 0.1, nesterov=True), "0.1"),
        (lambda: Adam(betas=(0.9, 1.0)), "beta 1.0"),
        (lambda: Adam(eps=-1.0), "eps -1.0"),
        (lambda: sgd_step(SGD(0.1), np.zeros(1, np.float32), np.zeros(1, np.float32), SGDState()), "float32"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
