"""Drives torch's optimizers and the oracle's with the same settings; what the optimizer tests here share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.oracle.intervals import Interval
from lockstep.oracle.optimizer_intervals import adam_step_interval, sgd_step_interval
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState

Array = NDArray[Any]
Settings = SGD | Adam
VARIANTS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def torch_optimizer(settings: Settings, params: list[torch.nn.Parameter], variant: str) -> torch.optim.Optimizer:
    """torch's optimizer for these settings; the variant is one of ``VARIANTS``."""
    options: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "maximize": settings.maximize}
    options |= VARIANTS[variant]
    if isinstance(settings, SGD):
        options |= {"momentum": settings.momentum, "dampening": settings.dampening, "nesterov": settings.nesterov}
        return torch.optim.SGD(params, **options)
    kind = torch.optim.AdamW if settings.decoupled else torch.optim.Adam
    return kind(params, betas=settings.betas, eps=settings.eps, **options)


def torch_state(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> dict[str, Array]:
    """Parameter, and momentum buffer or moments where there are any."""
    found = {"param": param.detach().numpy()}
    for name in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
        if optimizer.state[param].get(name) is not None:
            found[name] = optimizer.state[param][name].numpy()
    return found


def oracle_state(param: Any, state: SGDState[Any] | AdamState[Any]) -> dict[str, Any]:
    """The same, of what the oracle returns."""
    if isinstance(state, AdamState):
        return {"param": param, "exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq}
    buffer = state.momentum_buffer
    return {"param": param} if buffer is None else {"param": param, "momentum_buffer": buffer}


def start(settings: Settings, zero: Any) -> SGDState[Any] | AdamState[Any]:
    """The state before the first step; ``zero`` is in the kind of the values."""
    return SGDState() if isinstance(settings, SGD) else AdamState(zero, zero)


def enclose(settings: Settings) -> Callable[..., Any]:
    """The oracle's enclosure of one step."""
    return sgd_step_interval if isinstance(settings, SGD) else adam_step_interval


def enclosures(settings: Settings, begin: Array, grads: list[Array]) -> dict[str, Interval]:
    """What parameter and state may be after a step with each of these gradients."""
    value, state = Interval.point(begin), start(settings, Interval.point(np.zeros(begin.shape)))
    for grad in grads:
        value, state = enclose(settings)(settings, value, Interval.point(grad), state)
    return oracle_state(value, state)


def initial(seed: int, count: int) -> Array:
    """A parameter."""
    return np.random.default_rng(seed + 1000).standard_normal(count).astype(np.float32)


def gradients(seed: int, count: int, steps: int) -> list[Array]:
    """Gradients of widely different sizes."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(count) * np.exp2(rng.integers(-12, 3, count))).astype(np.float32) for _ in range(steps)
    ]
