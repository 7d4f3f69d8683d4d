"""Kernels compiled for a GPU on a machine without one, to read in PTX what cannot be seen in results."""

import re
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*i16",  # carried as words
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def ptx(
    kernel: Any, pointers: dict[str, torch.dtype], constants: dict[str, Any], aligned: bool = True, **options: Any
) -> str:
    """The PTX of a kernel for sm_90. Arguments that are neither pointers nor constants are int32 or float32 scalars.

    ``pointers``: dtype by name, aligned to 16 bytes as Triton finds fresh tensors to be, or not; ``options``: of the
    launch.
    """
    signature: dict[str, str] = {}
    for parameter in kernel.params:
        name = parameter.name
        if name in constants or parameter.is_constexpr:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = TYPES[pointers[name]]
        else:
            signature[name] = "fp32" if name in FLOATS else "i64" if name in LENGTHS else "i32"
    constexprs = {
        (place,): constants.get(parameter.name, parameter.default)
        for place, parameter in enumerate(kernel.params)
        if signature[parameter.name] == "constexpr"
    }
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, parameter in enumerate(kernel.params)
        if aligned and parameter.name in pointers
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    text: str = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
    return text


FLOATS = {"divisor", "scale", "max_norm", "decay", "lr", "step_size", "correction", "eps", "beta1", "beta2"}
LENGTHS = {"count"}


def instructions(text: str) -> list[str]:
    """The instructions alone: no directives, labels or comments; predicates cut off."""
    lines = (re.sub(r"^@!?%p\d+\s+", "", line.strip()) for line in text.splitlines())
    return [line for line in lines if re.match(r"[a-z]\w*[.\s]", line)]
