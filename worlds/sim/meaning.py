"""The result of each collective, from the inputs of all members in rank order."""

import functools
from collections.abc import Sequence

import torch

from lockstep.worlds.contract import Collective
from lockstep.worlds.sim.meeting import Flat
from lockstep.worlds.sim.order import Combiner
from lockstep.worlds.sim.ring import partial_sums


def carry_out(
    calls: Sequence[Collective], inputs: Sequence[Flat], members: tuple[int, ...], combiner: Combiner | None = None
) -> list[Flat | None]:
    """The meaning of a collective, in rank order: one flat output for each member, None where it gets nothing.

    ``calls`` and ``inputs`` are by rank in the group, ``members`` the global ranks, by which a root is named.
    ``combiner`` says how reductions are carried out, where not from member 0 upwards and rounding at every hop.
    """
    call, size = calls[0], len(inputs)
    root = members.index(call.root) if call.root >= 0 else -1
    if call.operation in ("barrier", "monitored_barrier"):
        return [None] * size
    if call.operation == "broadcast":
        return [None if member == root else inputs[root] for member in range(size)]
    if call.operation == "all_gather":
        return [torch.cat(list(inputs))] * size
    if call.operation == "gather":
        return [torch.cat(list(inputs)) if member == root else None for member in range(size)]
    if call.operation == "scatter":
        return list(_cut(inputs[root], (call.count,) * size))
    if call.operation == "all_to_all":
        parts = [_cut(mine, theirs.gives) for mine, theirs in zip(inputs, calls, strict=True)]
        return [torch.cat([sent[member] for sent in parts]) for member in range(size)]
    total = _reduce(call.reduction, inputs, combiner)
    if call.operation == "all_reduce":
        return [total] * size
    if call.operation == "reduce":
        combine = _COMBINE[call.reduction]
        return [total if member == root else partial_sums(combine, inputs, member) for member in range(size)]
    if call.operation == "reduce_scatter":
        return list(_cut(total, call.gives or (call.count // size,) * size))
    raise NotImplementedError(f"the simulated world does not know {call.operation}")


def _cut(flat: Flat, sizes: Sequence[int]) -> tuple[Flat, ...]:
    return flat.split_with_sizes(list(sizes))


# min and max lose a NaN, as NCCL's do (fminf and fmaxf in its reduce_kernel.h) and gloo's may: see docs/what-runs.md.
_COMBINE = {
    "sum": torch.add,
    "premul_sum": torch.add,
    "average": torch.add,
    "min": torch.fmin,
    "max": torch.fmax,
    "product": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def _reduce(reduction: str, inputs: Sequence[Flat], combiner: Combiner | None) -> Flat:
    if reduction.startswith("sparse"):  # gloo gathers indices and values, and adds up from rank 0 on
        return functools.reduce(torch.add, inputs).coalesce()
    combine = _COMBINE[reduction]
    total = functools.reduce(combine, inputs) if combiner is None else combiner(combine, list(inputs))
    if reduction != "average":
        return total
    return torch.div(total, len(inputs), rounding_mode=None if total.is_floating_point() else "trunc")
