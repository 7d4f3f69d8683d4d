"""The dtypes in which gradients are communicated."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.judging.traffic import REDUCTIONS, elements, reductions
from lockstep.properties.trial import Run
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import Collective

# The dtypes that can represent every value of a dtype.
HOLDS = {
    "float64": ("float64",),
    "float32": ("float32", "float64"),
    "float16": ("float16", "float32", "float64"),
    "bfloat16": ("bfloat16", "float32", "float64"),
}


def due(scenario: Scenario) -> dict[str, int]:
    """For each dtype, the number of gradient elements to be reduced in all micro-batches."""
    counts = dict.fromkeys(HOLDS, 0)
    for batch in scenario.microbatches:
        used = {scenario.tensor(parameter) for order in batch.orders for parameter in order}
        for tensor in used if batch.synchronize else ():
            counts[scenario.parameters[tensor].dtype] += scenario.parameters[tensor].count
    return counts


def in_training(run: Run) -> bool:
    """True if every rank sends gradients during training, and not only for observation."""
    sent = all(any(call.count for call in calls) for calls in run.since_construction)
    return run.scenario.world_size > 1 and sent and not any(reductions(calls) for calls in run.looks)


def wide_enough(run: Run, headline: str) -> None:
    """Check that for each dtype, enough elements are sent in it, or in a dtype that can represent it.

    Enough means as many as have a gradient to be reduced. Broadcasts are left out because they carry parameters, unless
    nothing else is sent. A run that reduces only for observation is not judged.
    """
    scenario = run.scenario
    if not in_training(run):
        return
    counts = due(scenario)
    for rank, calls in enumerate(map(_with_gradients, run.since_construction)):
        for wider in HOLDS.values():
            least = sum(count for dtype, count in counts.items() if dtype in wider)
            sent = sum(room(each, wider) for each in calls)
            if sent < least:
                words = f"At least {_number(least)} must travel in {' or '.join(wider)}; rank {rank} sends {sent}."
                raise run.broken(SilentlyWrong, f"{headline} {words}")


def _number(elements: int) -> str:
    return f"{elements} element{'s' * (elements > 1)}"


def _with_gradients(calls: Sequence[Collective]) -> list[Collective]:
    return [call for call in calls if call.operation != "broadcast" and call.count] or list(calls)


def room(call: Collective, dtypes: Sequence[str]) -> int:
    """The number of elements of these dtypes that a collective may carry, in one of these dtypes or as bytes."""
    if call.dtype in dtypes:
        return call.count
    if call.dtype in FORMATS or not call.count:  # a barrier has no dtype
        return 0
    try:
        width = np.dtype(call.dtype).itemsize
    except TypeError:  # a dtype that NumPy does not know is taken to be as wide as any
        width = np.dtype(np.complex128).itemsize
    return call.count * width // min(FORMATS[dtype].bytes for dtype in dtypes)


def on_the_wire(dtype: str, claims: Claims) -> str:
    """The dtype in which a gradient is reduced: its own, or a claimed one, which may be wider or narrower."""
    if claims.wire_dtype is not None:
        return claims.wire_dtype
    return claims.reduce_dtype if claims.reduce_dtype in HOLDS[dtype] else dtype


def _by_dtype(calls: Sequence[Collective]) -> Counter[str]:
    """The number of elements of each dtype that the collectives carry. Gathers and broadcasts may carry bytes."""
    counts = Counter[str]()
    for call in calls:
        for dtype in HOLDS:
            as_bytes = 0 if call.operation in REDUCTIONS else room(call, (dtype,))
            counts[dtype] += elements(call) if call.dtype == dtype else as_bytes
    return counts


def as_claimed(run: Run, claims: Claims, headline: str) -> None:
    """Check that enough elements are reduced in the claimed dtype (`on_the_wire`).

    Norms or flags may be reduced in other dtypes. If elements are missing and no other dtype of gradients was reduced
    instead, ranks may exchange gradients and add them themselves. Then exchanged elements count, even as bytes. A run
    that reduces only for observation is not judged.
    """
    scenario = run.scenario
    if not in_training(run):
        return
    counts, least = due(scenario), dict.fromkeys(HOLDS, 0)
    for dtype, count in counts.items():
        least[on_the_wire(dtype, claims)] += count
    for rank, calls in enumerate(run.since_construction):
        told = _by_dtype(reductions(calls))
        missing = sum(max(0, count - told[dtype]) for dtype, count in least.items())
        if sum(told[dtype] for dtype, count in least.items() if counts[dtype] and not count) < missing:
            told = _by_dtype(_with_gradients(calls))
        for name, count in least.items():
            if (sent := told[name]) < count:
                words = f"At least {_number(count)} must be reduced in {name}; on rank {rank} {sent or 'none'} are."
                raise run.broken(SilentlyWrong, f"{headline} {words}")
