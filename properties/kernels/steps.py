"""Fused optimizer steps on a shard: the strategies, and the expected results."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from lockstep.oracle.intervals import Interval, hull
from lockstep.oracle.optimizer_intervals import adam_step_interval, sgd_step_interval
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState
from lockstep.oracle.rounding import round_array
from lockstep.oracle.short import Short
from lockstep.properties.kernels.cases import LONGEST, lengths
from lockstep.properties.kernels.comparing import must_equal
from lockstep.properties.kernels.reference import Array, same
from lockstep.properties.kernels.under_test import Kernels
from lockstep.properties.kernels.values import DTYPES, elements
from lockstep.properties.kernels.variants import cuts, step_variants

OPTIMIZERS = (
    {"sgd_step": SGD(0.125), "adamw_step": Adam(decoupled=True)},
    {"sgd_step": SGD(0.1, momentum=0.9), "adamw_step": Adam(1e-2, weight_decay=0.1, decoupled=True)},
    {"sgd_step": SGD(0.05, 0.8, weight_decay=0.1), "adamw_step": Adam(0.1, (0.4, 0.9), 1e-3, decoupled=True)},
)


@dataclass(frozen=True, repr=False)
class Shard(Short):
    """A shard of ``count`` elements, its dtypes, the index of its settings in OPTIMIZERS, and its cuts.

    ``kind``: of the gradients' values. ``lacking``: settings for which the function has no argument, which are then 0.
    """

    count: int
    param: str = "bfloat16"
    grad: str = "float32"
    steps: int = 1
    settings: int = 0
    cuts: tuple[int, ...] = ()
    coefficient: float | None = None
    scale: float = 1.0
    kind: str = "general"
    lacking: tuple[str, ...] = ()


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    """A shard of any length, with any dtypes and settings; one to three steps."""
    count, variant = draw(lengths(10_000)), draw(step_variants())
    return Shard(
        count,
        variant.param,
        variant.grad,
        draw(st.integers(1, 3)),
        variant.settings,
        draw(cuts(count)),
        draw(st.sampled_from((0.25, 0.3))) if variant.coefficient else None,
        draw(st.sampled_from((1.0, 0.5, 1 / 3))),
        draw(st.sampled_from(("general", "general", "infinite", "nan"))),
    )


ALWAYS = (Shard(9, scale=1 / 3), *(Shard(9, steps=2, settings=1, kind=kind) for kind in ("infinite", "nan")))
ALWAYS += (Shard(LONGEST),)


def optimizer_of(shard: Shard, function: str) -> Any:
    """The optimizer with the shard's settings."""
    optimizer: Any = OPTIMIZERS[shard.settings][function]
    return replace(optimizer, **dict.fromkeys(shard.lacking, 0.0))


def claimed(kernels: Kernels, shard: Shard, function: str) -> Shard:
    """The shard without the settings for which the function has no argument."""
    takes, optimizer = kernels.functions[function], OPTIMIZERS[shard.settings][function]
    lacking = tuple(x for x in ("momentum", "weight_decay") if hasattr(optimizer, x) and x not in takes)
    coefficient, scale = (getattr(shard if name in takes else Shard, name) for name in ("coefficient", "scale"))
    return replace(shard, lacking=lacking, coefficient=coefficient, scale=scale)


def run(kernels: Kernels, shard: Shard, function: str) -> list[Array]:
    """Run the steps. Returns param, master and the optimizer's state, as bytes."""
    shard, takes = claimed(kernels, shard, function), kernels.functions[function]
    optimizer = optimizer_of(shard, function)
    if isinstance(optimizer, SGD):
        named, states = ["lr", "momentum", "weight_decay"], ["momentum_buffer"] if optimizer.momentum else []
    else:
        named, states = ["lr", "betas", "eps", "weight_decay"], ["exp_avg", "exp_avg_sq"]
    settings = {name: getattr(optimizer, name) for name in named if name in takes}
    if not states and "momentum_buffer" in takes:
        settings["momentum_buffer"] = None
    return kernels.run(
        "step",
        function=function,
        count=shard.count,
        steps=shard.steps,
        states=states,
        zeroed=[] if "first" in takes else states,  # left poisoned if the kernel is told that there is no state yet
        counted=[name for name in ("step", "first") if name in takes],
        param=shard.param,
        grad=shard.grad,
        kind=shard.kind,
        cuts=shard.cuts,
        settings=settings,
        coefficient=shard.coefficient,
        scale=shard.scale,
    )


def check(kernels: Kernels, shard: Shard, function: str) -> None:
    """Raise AssertionError if a result is outside its enclosure, or if the parameter is not the rounded master."""
    shard = claimed(kernels, shard, function)
    param, *found = run(kernels, shard, function)
    master, *states = (np.frombuffer(x.tobytes(), np.float32) for x in found)
    must_equal([param], [round_array(master, shard.param)])
    value, state = enclose(shard, function)
    named = [("master", master, value)]
    if isinstance(state, AdamState):
        named += [("exp_avg", states[0], state.exp_avg), ("exp_avg_sq", states[1], state.exp_avg_sq)]
    elif state.momentum_buffer is not None and states:
        named.append(("momentum_buffer", states[0], state.momentum_buffer))
    gradients = np.stack([gradient(shard, t) for t in range(1, shard.steps + 1)])
    nan, finite = np.isnan(gradients).any(0), np.isfinite(gradients).all(0)
    for name, actual, bound in named:
        right = np.where(nan, np.isnan(actual), np.where(finite, bound.contains(actual), ~np.isfinite(actual)))
        if not right.all():
            first = int(np.flatnonzero(~right)[0])
            limits = f"lie in [{bound.low[first]}, {bound.high[first]}]"
            if not finite[first]:
                limits = f"be {'nan' if nan[first] else 'infinite or nan'}: its gradients are {gradients[:, first]}"
            raise AssertionError(f"{name}[{first}] is {actual[first]}, and must {limits}")


def check_pieces(kernels: Kernels, shard: Shard, function: str) -> None:
    """Raise AssertionError if steps on the pieces differ in a bit from the step on the whole.

    The bits of a NaN are not compared.
    """
    whole, pieces = (run(kernels, replace(shard, cuts=cuts), function) for cuts in ((), shard.cuts))
    dtypes = [DTYPES[shard.param], *[DTYPES["float32"]] * (len(whole) - 1)]
    for index, (got, wanted, dtype) in enumerate(zip(pieces, whole, dtypes, strict=True)):
        if words := same(got.tobytes(), np.frombuffer(wanted.tobytes(), dtype), numbers=True):
            cut = f"{function} on pieces cut at {shard.cuts} is not the step on the whole"
            raise AssertionError(f"{cut}: result {index}: {words}")


def gradient(shard: Shard, t: int) -> Array:
    """The gradient of step t times the scale, rounded if a coefficient follows.

    The product with it is exact in float64.
    """
    values = elements(shard.kind, shard.count, shard.grad, 10 + t).astype(np.float64)
    values = values * np.float64(np.float32(shard.scale))
    if shard.coefficient is None:
        return values
    return values.astype(np.float32).astype(np.float64) * np.float64(np.float32(shard.coefficient))


def factors_first(shard: Shard, t: int) -> Array:
    """The same, with scale and coefficient multiplied by each other first."""
    factor = np.float32(shard.scale) * np.float32(1.0 if shard.coefficient is None else shard.coefficient)
    return elements(shard.kind, shard.count, shard.grad, 10 + t).astype(np.float64) * np.float64(factor)


def enclose(shard: Shard, function: str) -> tuple[Interval, Any]:
    """Enclose the master and the state after all steps, for every known form of the optimizer.

    Non-finite gradients count as zero here.
    """
    optimizer = optimizer_of(shard, function)
    value = Interval.point(elements("general", shard.count, "float32", 1))
    zero = Interval.point(np.zeros(shard.count))
    state: Any = SGDState() if isinstance(optimizer, SGD) else AdamState(zero, zero)
    step: Any = sgd_step_interval if isinstance(optimizer, SGD) else adam_step_interval
    for t in range(1, shard.steps + 1):
        forms = [np.where(np.isfinite(each), each, 0.0) for each in (gradient(shard, t), factors_first(shard, t))]
        grad = hull(*map(Interval.point, forms)).maybe_fused("float32")
        value, state = step(optimizer, value, grad, state, implementations="any")
    return value, state
