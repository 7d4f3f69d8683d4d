"""In which dtypes gradients travel."""

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

# The dtypes that hold every value of a dtype.
HOLDS = {
    "float64": ("float64",),
    "float32": ("float32", "float64"),
    "float16": ("float16", "float32", "float64"),
    "bfloat16": ("bfloat16", "float32", "float64"),
}


def due(scenario: Scenario) -> dict[str, int]:
    """Of each dtype, how many elements of gradients are to be reduced in all micro-batches."""
    counts = dict.fromkeys(HOLDS, 0)
    for batch in scenario.microbatches:
        used = {scenario.tensor(parameter) for order in batch.orders for parameter in order}
        for tensor in used if batch.synchronize else ():
            counts[scenario.parameters[tensor].dtype] += scenario.parameters[tensor].count
    return counts


def in_training(run: Run) -> bool:
    """True if it is in training that every rank sends gradients, and not only when somebody looks at them."""
    sent = all(any(call.count for call in calls) for calls in run.since_construction)
    return run.scenario.world_size > 1 and sent and not any(reductions(calls) for calls in run.looks)


def wide_enough(run: Run, headline: str) -> None:
    """For each dtype, as many elements as have a gradient to be reduced travel in it, or in one that holds it.

    Broadcasts are left out, for they carry parameters; but where nothing else travels they carry gradients. What
    reduces only when somebody looks is not judged.
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
    """The number of elements of these dtypes that a collective may carry: in one of them, or as bytes, which do not
    tell what they are.
    """
    if call.dtype in dtypes:
        return call.count
    if call.dtype in FORMATS or not call.count:  # a barrier has no dtype
        return 0
    try:
        width = np.dtype(call.dtype).itemsize
    except TypeError:  # one that NumPy does not know: as wide as any
        width = np.dtype(np.complex128).itemsize
    return call.count * width // min(FORMATS[dtype].bytes for dtype in dtypes)


def on_the_wire(dtype: str, claims: Claims) -> str:
    """The dtype in which a gradient is reduced: its own, or one that is claimed, to be wider or to travel in."""
    if claims.wire_dtype is not None:
        return claims.wire_dtype
    return claims.reduce_dtype if claims.reduce_dtype in HOLDS[dtype] else dtype


def _by_dtype(calls: Sequence[Collective]) -> Counter[str]:
    """The number of elements of each dtype that these carry; gathers and broadcasts may carry bytes."""
    counts = Counter[str]()
    for call in calls:
        for dtype in HOLDS:
            as_bytes = 0 if call.operation in REDUCTIONS else room(call, (dtype,))
            counts[dtype] += elements(call) if call.dtype == dtype else as_bytes
    return counts


def as_claimed(run: Run, claims: Claims, headline: str) -> None:
    """As many elements as have a gradient to be reduced are reduced in the dtype that is claimed (`on_the_wire`).

    Other things may be added up in others: norms, flags. Where what is missing is not reduced in a dtype of gradients
    in which nothing is due, ranks exchange it and add it up themselves, and what they exchange counts, be it as bytes.
    What reduces only when somebody looks is not judged.
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
