"""What each collective computes, on the inputs of all members in rank order."""

import functools

import torch

from worlds.contract import Collective
from worlds.sim.meeting import Flat
from worlds.sim.order import Combiner


def carry_out(call: Collective, inputs: list[Flat], combiner: Combiner | None = None) -> list[Flat | None]:
    """The meaning of a collective, in rank order: one flat output for each member, None where it gets nothing.

    ``combiner`` says how reductions are carried out, where not from member 0 upwards and rounding at every hop.
    """
    members = len(inputs)
    if call.operation == "barrier":
        return [None] * members
    if call.operation == "broadcast":
        return [None if member == call.root else inputs[call.root] for member in range(members)]
    if call.operation == "all_gather":
        return [torch.cat(inputs)] * members
    total = _reduce(call.reduction, inputs, combiner)
    if call.operation == "all_reduce":
        return [total] * members
    if call.operation == "reduce":
        return [total if member == call.root else None for member in range(members)]
    if call.operation == "reduce_scatter":
        return list(total.chunk(members))
    raise NotImplementedError(f"the simulated world does not know {call.operation}")


_COMBINE = {
    "sum": torch.add,
    "average": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


def _reduce(reduction: str, inputs: list[Flat], combiner: Combiner | None) -> Flat:
    combine = _COMBINE[reduction]
    total = functools.reduce(combine, inputs) if combiner is None else combiner(combine, inputs)
    return total / len(inputs) if reduction == "average" else total
