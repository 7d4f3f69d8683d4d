"""SGD, Adam and AdamW as the papers write them, in real arithmetic: what a step means before any rounding.

A step takes one parameter, its gradient and its state, and returns the new parameter and state. Values are arrays of
float64, or object arrays of ``Fraction`` for exact results; hyper-parameters are the float64 numbers they are written
as (0.1 is not 1/10). State belongs to a parameter: one without a gradient in some step is not stepped, and its own step
count and momentum stay behind those of the others.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.rounding import sqrt_below

T = TypeVar("T")
Values = NDArray[Any]


@dataclass(frozen=True)
class SGD:
    """Hyper-parameters of stochastic gradient descent, named as in ``torch.optim.SGD``."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        """ValueError for what torch refuses too."""
        _not_negative(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(
                f"nesterov needs a momentum above 0 and no dampening, not {self.momentum} and {self.dampening}"
            )


@dataclass(frozen=True)
class Adam:
    """Hyper-parameters of Adam; with ``decoupled`` weight decay, of AdamW."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        """ValueError for what torch refuses too."""
        _not_negative(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise ValueError(f"beta {beta} must be at least 0 and below 1")


@dataclass(frozen=True)
class SGDState(Generic[T]):
    """The momentum buffer of one parameter; None until its first step with momentum."""

    momentum_buffer: T | None = None


@dataclass(frozen=True)
class AdamState(Generic[T]):
    """The moments of one parameter and how often it has been stepped; zeros and 0 at the start."""

    exp_avg: T
    exp_avg_sq: T
    step: int = 0


def sgd_step(settings: SGD, param: Values, grad: Values, state: SGDState[Values]) -> tuple[Values, SGDState[Values]]:
    """One step of SGD (Sutskever et al., ICML 2013, in the form of torch's documentation).

    g <- -g if maximize;  g <- g + weight_decay p
    b <- g in the first step (not dampened), momentum b + (1 - dampening) g after it
    d = g + momentum b with Nesterov, b without, g where momentum is 0
    p <- p - lr d
    """
    lr, momentum, dampening, weight_decay = _like(
        param, settings.lr, settings.momentum, settings.dampening, settings.weight_decay
    )
    g = -grad if settings.maximize else grad
    g = g + weight_decay * param
    if settings.momentum == 0:
        return param - lr * g, state
    b = g if state.momentum_buffer is None else momentum * state.momentum_buffer + (1 - dampening) * g
    direction = g + momentum * b if settings.nesterov else b
    return param - lr * direction, SGDState(b)


def adam_step(
    settings: Adam, param: Values, grad: Values, state: AdamState[Values]
) -> tuple[Values, AdamState[Values]]:
    """One step of Adam (Kingma and Ba, ICLR 2015, algorithm 1) or AdamW (Loshchilov and Hutter, ICLR 2019, alg. 2).

    t <- t + 1;  g <- -g if maximize
    Adam: g <- g + weight_decay p        AdamW: p <- p - lr weight_decay p
    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g**2
    p <- p - lr (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    ZeroDivisionError (Fractions) or NaN (floats) where eps = 0 and v = 0.
    """
    lr, beta1, beta2, eps, weight_decay = _like(
        param, settings.lr, *settings.betas, settings.eps, settings.weight_decay
    )
    t = state.step + 1
    g = -grad if settings.maximize else grad
    if settings.decoupled:
        param = param - lr * weight_decay * param
    else:
        g = g + weight_decay * param
    m = beta1 * state.exp_avg + (1 - beta1) * g
    v = beta2 * state.exp_avg_sq + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    return param - lr * m_hat / (_sqrt(v_hat) + eps), AdamState(m, v, t)


def fractions(values: Values) -> Values:
    """The same values as an object array of Fractions."""
    flat = [Fraction(float(x)) for x in values.reshape(-1)]
    return np.array([*flat, None], dtype=object)[:-1].reshape(values.shape)


def _sqrt(values: Values) -> Values:
    """Square roots; of Fractions, exact where rational and else low by at most 2**-128 of themselves."""
    if values.dtype != object:
        return np.sqrt(values)
    flat = [sqrt_below(x) for x in values.reshape(-1)]
    return np.array([*flat, None], dtype=object)[:-1].reshape(values.shape)


def _like(values: Values, *numbers: float) -> list[Any]:
    """The numbers as Fractions where the values are: a float among Fractions would turn all of them into floats."""
    if values.dtype == object:
        return [Fraction(x) for x in numbers]
    if values.dtype != np.float64:
        raise ValueError(f"values of dtype {values.dtype}: real arithmetic is done on float64 or on Fractions")
    return list(numbers)


def _not_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"{name} {value} must not be negative")
