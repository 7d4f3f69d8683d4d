"""Agreement of a group's members on a collective, and the validity of one rank's own part of it.

Members agree on operation, reduction, dtype, count, root and group, as real backends need. Shapes may differ, because
real backends send elements, not shapes. Two collectives have counts that depend on the rank: an all_gather of uneven
parts, and an all_to_all, in which each receiver must expect the count that its sender gives.
"""

from collections.abc import Mapping

import torch

from lockstep.worlds.contract import Collective
from lockstep.worlds.described_group import Tensors

_ALIKE = ("gather", "scatter")  # every backend refuses parts of unequal shape
_NOT_CARRIED = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
_COPIES = ("all_gather", "gather", "scatter", "all_to_all")
_BITS = ("band", "bor", "bxor")


def disagreeing(calls: Mapping[int, Collective], member: int, call: Collective) -> int | None:
    """The first of the members that have called already and mean something else, if any. Keys: ranks in the group."""
    other, theirs = next(iter(calls.items()))
    if call.operation != "all_to_all" and not call.takes:
        return None if theirs is call or theirs == call else other
    for other, theirs in calls.items():
        if theirs.agreed() != call.agreed():
            return other
        if call.operation == "all_to_all" and (
            call.gives[other] != theirs.takes[member] or call.takes[other] != theirs.gives[member]
        ):
            return other
    return None


def check_tensor(call: Collective, tensor: torch.Tensor) -> None:
    """Raises RuntimeError where gloo and NCCL would."""
    if not tensor.is_cpu:
        raise RuntimeError(f"{call}: the simulated world has CPU tensors, and this one is on {tensor.device}")
    if tensor.dtype in _NOT_CARRIED:
        raise RuntimeError(f"{call}: neither gloo nor NCCL carries {call.dtype}")
    if tensor.is_complex() and call.operation in _COPIES:
        raise RuntimeError(f"{call}: neither gloo nor NCCL carries {call.dtype}; torch.view_as_real makes it floats")


def check(call: Collective, inputs: Tensors, outputs: Tensors, member: int, size: int) -> None:
    """Raises RuntimeError, on the rank that is wrong, if its tensors cannot be what the collective needs."""
    if not (inputs or outputs or call.operation in ("barrier", "monitored_barrier")):
        raise RuntimeError(f"{call}: it needs a tensor")
    if call.reduction:
        _check_reduction(call, inputs)
    if outputs is inputs or _fits(call, inputs, outputs, size):
        return
    _check_sizes(call, inputs, outputs, member, size)
    for output in outputs:
        if output.dtype != (inputs or outputs)[0].dtype:
            raise RuntimeError(f"{call}: an output is {output.dtype}, the input {(inputs or outputs)[0].dtype}")


def _check_reduction(call: Collective, inputs: Tensors) -> None:
    if call.dtype.startswith("float8"):
        raise RuntimeError(f"{call}: gloo reduces no {call.dtype}")
    if call.reduction in _BITS and (inputs[0].is_floating_point() or inputs[0].is_complex()):
        raise RuntimeError(f"{call}: bits of {call.dtype} cannot be combined; integers and bool can")
    if call.reduction == "average" and call.dtype == "bool":
        raise RuntimeError(f"{call}: bool has no average")
    if call.reduction.startswith("sparse "):
        if not call.reduction.startswith("sparse sum "):
            raise RuntimeError(f"{call}: sparse tensors can be added up, and nothing else")
        if call.dtype in ("float16", "bool"):
            raise NotImplementedError(f"{call}: torch adds up no sparse tensors of {call.dtype}")


def _fits(call: Collective, inputs: Tensors, outputs: Tensors, size: int) -> bool:
    """True if one tensor becomes one as it should, without a closer look: the most frequent case."""
    if len(inputs) != 1 or len(outputs) != 1 or inputs[0].dtype != outputs[0].dtype:
        return not (inputs or outputs)
    if call.operation == "reduce_scatter":
        return outputs[0].numel() * size == call.count and not call.gives
    return call.operation == "all_gather" and outputs[0].numel() == call.count * size and not call.takes


def _check_sizes(call: Collective, inputs: Tensors, outputs: Tensors, member: int, size: int) -> None:
    alike = call.operation in _ALIKE
    for word, sizes in (("gives", call.gives), ("takes", call.takes)):
        if sizes and (alike or len(sizes) != size):
            needed = f"{size} tensors{' of one size' * alike}, one for each rank of the group"
            raise RuntimeError(f"{call}: it needs {needed}, got {word} {list(sizes)}")
    if alike:
        shapes = sorted({tuple(tensor.shape) for tensor in (*inputs, *outputs)})
        if len(inputs) + len(outputs) == size + 1 and len(shapes) > 1:
            raise RuntimeError(f"{call}: all tensors must have one shape, got {shapes}")
    given, taken = (sum(tensor.numel() for tensor in tensors) for tensors in (inputs, outputs))
    if call.operation == "reduce_scatter" and not call.gives and given % size:
        raise RuntimeError(f"{call}: {given} elements cannot be scattered evenly to {size} ranks")
    if call.operation == "all_gather" and call.takes and call.takes[member] != given:
        raise RuntimeError(f"{call}: the output for this rank has {call.takes[member]} elements, its input {given}")
    expected = {
        "all_gather": sum(call.takes) or call.count * size,
        "gather": call.count * size if outputs else 0,
        "reduce_scatter": call.gives[member] if call.gives else call.count // size,
    }.get(call.operation, taken)
    if taken != expected:
        raise RuntimeError(f"{call}: the output must have {expected} elements, got {taken}")
