"""Faults planted in torch's optimizer steps, or in the gradients they are fed, fall outside the oracle's enclosures.

The fraction of elements outside is recorded for each part of the state (`-s` prints it).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.oracle.optimizers import SGD, Adam
from lockstep.properties.tests.torch_steps import (
    Array,
    Settings,
    enclosures,
    gradients,
    initial,
    torch_optimizer,
    torch_state,
)

Run = Callable[[Array, list[Array]], dict[str, Array]]
Record = Callable[[str, object], None]
COUNT = 2003
ADAMW = Adam(1e-2, weight_decay=0.1, decoupled=True)
MOMENTUM = SGD(0.1, momentum=0.9, weight_decay=0.01)


def torch_run(settings: Settings, steps_before: int = 0) -> Run:
    """torch's own optimizer with these settings; ``steps_before`` are counted before the first one."""

    def run(begin: Array, grads: list[Array]) -> dict[str, Array]:
        param = torch.nn.Parameter(torch.from_numpy(begin.copy()))
        optimizer = torch_optimizer(settings, [param], "single")
        if steps_before:
            moments = {name: torch.zeros_like(param) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[param] = {"step": torch.tensor(float(steps_before)), **moments}
        for grad in grads:
            param.grad = torch.from_numpy(grad)
            optimizer.step()
        return torch_state(optimizer, param)

    return run


def adamw_by_hand(fault: str) -> Run:
    """AdamW in torch calls, as ``torch/optim/adam.py`` makes them, with one fault planted (or "none")."""

    def run(begin: Array, grads: list[Array]) -> dict[str, Array]:
        p, (b1, b2), decay = torch.from_numpy(begin.copy()), ADAMW.betas, 1 - ADAMW.lr * ADAMW.weight_decay
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for t, values in enumerate(grads, start=1):
            grad = torch.from_numpy(values)
            if fault != "weight decay after the step":
                p.mul_(decay)
            m.lerp_(grad, 1 - b1)
            v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
            first, root = (1.0, 1.0) if fault == "no bias correction" else (1 - b1**t, (1 - b2**t) ** 0.5)
            denominator = (v.sqrt() / root).add_(ADAMW.eps)
            if fault == "eps inside the square root":
                denominator = (v / root**2 + ADAMW.eps).sqrt()
            if fault == "eps before bias correction":
                denominator = (v.sqrt() + ADAMW.eps) / root
            p.addcdiv_(m, denominator, value=-ADAMW.lr / first)
            if fault == "weight decay after the step":
                p.mul_(decay)
        return {"param": p.numpy(), "exp_avg": m.numpy(), "exp_avg_sq": v.numpy()}

    return run


def through_bfloat16(begin: Array, grads: list[Array]) -> dict[str, Array]:
    """Parameters and state held in bfloat16."""
    after = torch_run(ADAMW)(begin, grads)
    return {name: torch.from_numpy(x).bfloat16().float().numpy() for name, x in after.items()}


# fault: (right settings, faulty run, the step from which it shows)
STEP_FAULTS: dict[str, tuple[Settings, Run, int]] = {
    "no bias correction": (ADAMW, adamw_by_hand("no bias correction"), 1),
    "step count one too high": (ADAMW, torch_run(ADAMW, steps_before=1), 1),
    "eps inside the square root": (ADAMW, adamw_by_hand("eps inside the square root"), 1),
    "eps before bias correction": (ADAMW, adamw_by_hand("eps before bias correction"), 1),
    "weight decay coupled": (ADAMW, torch_run(replace(ADAMW, decoupled=False)), 1),
    "weight decay after the step": (ADAMW, adamw_by_hand("weight decay after the step"), 1),
    "weight decay forgotten": (ADAMW, torch_run(replace(ADAMW, weight_decay=0.0)), 1),
    "beta2 0.99": (ADAMW, torch_run(replace(ADAMW, betas=(0.9, 0.99))), 1),
    "betas swapped": (ADAMW, torch_run(replace(ADAMW, betas=(0.999, 0.9))), 1),
    "lr off by 1e-5 of itself": (ADAMW, torch_run(replace(ADAMW, lr=ADAMW.lr * (1 + 1e-5))), 1),
    "parameters in bfloat16": (ADAMW, through_bfloat16, 1),
    "SGD dampened": (MOMENTUM, torch_run(replace(MOMENTUM, dampening=0.1)), 2),
    "SGD with Nesterov": (MOMENTUM, torch_run(replace(MOMENTUM, nesterov=True)), 1),
    "SGD upwards": (MOMENTUM, torch_run(replace(MOMENTUM, maximize=True)), 1),
    "SGD without weight decay": (MOMENTUM, torch_run(replace(MOMENTUM, weight_decay=0.0)), 1),
}


def outside(settings: Settings, run: Run, right: list[Array], wrong: list[Array] | None = None) -> dict[str, float]:
    """Fraction of elements of a run outside what the right gradients allow; it is fed with the wrong ones, if given."""
    begin = initial(5, right[0].size)
    actual = run(begin, right if wrong is None else wrong)
    allowed = enclosures(settings, begin, right)
    return {name: 1 - float(np.mean(interval.contains(actual[name]))) for name, interval in allowed.items()}


def report(record: Record, fault: str, fractions: dict[str, float]) -> None:
    shown = ", ".join(f"{name} {fraction:.3f}" for name, fraction in fractions.items())
    record("outside", shown)
    print(f"\n{fault}: outside {shown}")


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_a_fault_in_the_step_falls_outside_the_enclosure(fault: str, steps: int, record_property: Record) -> None:
    settings, run, first = STEP_FAULTS[fault]
    fractions = outside(settings, run, gradients(3, COUNT, steps))
    report(record_property, f"{fault}, {steps} steps", fractions)
    assert any(fractions.values()) == (steps >= first)


@pytest.mark.parametrize(
    ("settings", "run"),
    [(ADAMW, torch_run(ADAMW)), (ADAMW, adamw_by_hand("none")), (MOMENTUM, torch_run(MOMENTUM))],
)
def test_without_a_fault_the_same_runs_stay_inside(settings: Settings, run: Run) -> None:
    assert not any(outside(settings, run, gradients(3, COUNT, 5)).values())


WORLD_SIZE, MICROBATCHES = 4, 3
GRADIENT_FAULTS: dict[str, Callable[[Array], Array]] = {
    "sum for mean": lambda c: c.sum(axis=(0, 1)) / MICROBATCHES,
    "divided twice": lambda c: c.mean(axis=(0, 1)) / WORLD_SIZE,
    "divided by one rank too few": lambda c: c.sum(axis=(0, 1)) / (MICROBATCHES * (WORLD_SIZE - 1)),
    "not divided by micro-batches": lambda c: c.mean(axis=0).sum(axis=0),
    "last micro-batch only": lambda c: c[:, -1].mean(axis=0),
    "rank 0 only": lambda c: c[0].mean(axis=0),
    "rank 1 missing": lambda c: c[[0, 2, 3]].sum(axis=(0, 1)) / (MICROBATCHES * WORLD_SIZE),
    "rank 1 twice": lambda c: c[[0, 1, 1, 2, 3]].sum(axis=(0, 1)) / (MICROBATCHES * WORLD_SIZE),
}


def contributions(seed: int) -> Array:
    """[rank, micro-batch, element]: non-zero multiples of 12 times a power of two, so that the right mean is exact."""
    rng = np.random.default_rng(seed)
    shape = (WORLD_SIZE, MICROBATCHES, COUNT)
    counts: Array = rng.integers(1, 1000, shape) * rng.choice([-1, 1], shape)
    return 12.0 * counts * np.exp2(rng.integers(-24, -8, COUNT))


@pytest.mark.parametrize("fault", GRADIENT_FAULTS)
def test_a_fault_in_the_gradient_shows_in_sgd_and_in_adams_moments(fault: str, record_property: Record) -> None:
    """Of Adam's parameters nothing is asserted here: what scales all gradients alike cancels in them."""
    batches = [contributions(seed) for seed in range(3)]
    right = [c.mean(axis=(0, 1)).astype(np.float32) for c in batches]
    wrong = [GRADIENT_FAULTS[fault](c).astype(np.float32) for c in batches]
    sgd = outside(SGD(0.1), torch_run(SGD(0.1)), right, wrong)
    adam = outside(ADAMW, torch_run(ADAMW), right, wrong)
    report(record_property, fault, {"SGD": sgd["param"], **adam})
    assert sgd["param"] > 0
    assert adam["exp_avg"] > 0
    assert adam["exp_avg_sq"] > 0


def test_adams_parameters_hide_the_scale_of_the_gradient_and_its_moments_do_not() -> None:
    """With eps = 0 and gradients twice too large every parameter is right, and every moment is outside."""
    settings, right = Adam(1e-2, eps=0.0), gradients(4, COUNT, 5)
    fractions = outside(settings, torch_run(settings), right, [2 * grad for grad in right])
    assert fractions == {"param": 0.0, "exp_avg": 1.0, "exp_avg_sq": 1.0}
