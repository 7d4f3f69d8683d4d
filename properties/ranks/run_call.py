"""The program of every rank for P14: one call of a wrapper of a collective, with forward and perhaps backward."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.properties.ranks import lookup
from lockstep.properties.ranks.probes import to_numpy
from lockstep.properties.wrapper_call import AROUND, SECOND, Call, inputs, weights
from lockstep.worlds.devices import place


def run_call(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Run the call and return its results. They are None on ranks outside the group, and if there is no such result.

    - ``result``: the value that the wrapper returned.
    - ``second``: its value for other numbers, computed before the first value was read.
    - ``gradient``: of the input; ``again``: that of a second backward.
    - ``given``: the gradient of the result that backward received, laid out like the input.
    - ``around``: the memory between the elements of the input.
    - ``left``: the input after the call, unless the wrapper returned it.
    """
    asked = json.loads(payload)
    call = Call(**{**asked["call"], "group": tuple(asked["call"]["group"])})
    wrappers = lookup.find(asked["implementation"])
    group = None if len(call.group) == world_size else dist.new_group(list(call.group))
    if rank not in call.group:
        return dict.fromkeys(("result", "second", "gradient", "again", "given", "around", "left"))
    memory = memory_of(inputs(call, 1, call.shape)[rank], call.layout)
    memory.requires_grad_(asked["adjoint"])
    values = view_of(memory, call.layout)
    other = view_of(memory_of(inputs(call, SECOND, call.shape)[rank], call.layout), call.layout)
    options: dict[str, Any] = {
        "broadcast": {"root": call.root},
        "all_gather": {},
    }.get(call.operation, {"reduction": call.reduction})
    wrapper = getattr(wrappers, call.operation)
    result = wrapper(values, **options, group=group)
    second = wrapper(other, **options, group=group)
    gradient = again = given = None
    if asked["adjoint"]:
        layout = "transposed" if call.layout == "transposed" else "contiguous"
        weight = view_of(memory_of(weights(call)[rank], layout), layout)
        result.backward(weight, retain_graph=True)
        given = to_numpy(weight)
        # Autograd treats None as zero. A backward may return it for an input that does not affect the result.
        gradient = to_numpy(view_of(torch.zeros_like(memory) if memory.grad is None else memory.grad, call.layout))
        memory.grad = None
        result.backward(weight)
        again = to_numpy(view_of(torch.zeros_like(memory) if memory.grad is None else memory.grad, call.layout))
    between = memory.detach()[..., 1::2] if call.layout == "columns" else memory.new_empty(0)
    left = None if in_place(result, memory) else to_numpy(values)
    results = {"result": to_numpy(result), "second": to_numpy(second)}
    return {**results, "gradient": gradient, "again": again, "given": given, "around": to_numpy(between), "left": left}


def in_place(result: torch.Tensor, memory: torch.Tensor) -> bool:
    """True if the result has the same storage as the input. The caller then continues with the result."""
    return result.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def memory_of(values: Any, layout: str) -> torch.Tensor:
    """Memory such that `view_of` it is a tensor with these values."""
    # Torch does not know the dtypes of ml_dtypes.
    numbers = values.astype(np.float32) if values.itemsize == 2 else values
    tensor = torch.tensor(numbers, dtype=getattr(torch, values.dtype.name), device=place())
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous()
    if layout == "columns":
        shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
        memory = torch.full(shape, AROUND, dtype=tensor.dtype, device=place())
        memory[..., ::2] = tensor
        return memory
    return tensor


def view_of(memory: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor that the wrapper gets, or its gradient."""
    if layout == "transposed":
        return memory.transpose(0, -1)
    return memory[..., ::2] if layout == "columns" else memory
