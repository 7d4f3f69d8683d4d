"""Kernels compiled for a GPU on a machine without one: run as a program, in a process where nothing is interpreted.

The shipped functions are called as users call them, through Triton's own launcher, which types and specializes every
argument as at a real launch and compiles down to machine code; only the launch itself is left out. Prints JSON: for
each kind of call the PTX it would run, how many programs many lengths compile to, and how many launches a thousand
tensors take.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from lockstep.impls.faults import kernels_in_ptx as faults
from lockstep.impls.kernels import norm, pack, scale, step, table

F4, B2, H2 = torch.float32, torch.bfloat16, torch.float16
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 48, 127, 128, 1000, 4096, 8191, 8192, 8193, 2**15, 2**16 + 1, 100_000)


class CompileOnly:
    """What the launcher asks of a driver before anything runs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def programs(kernel: Any) -> list[Any]:
    """What a kernel has been compiled to so far."""
    return list(kernel.device_caches[0][0].values())


def calls() -> dict[str, tuple[Any, Callable[[int], object]]]:
    """By name, a kernel and a call of the function that launches it, for so many elements."""

    def flat(n: int, dtype: torch.dtype = F4) -> torch.Tensor:
        return torch.zeros(n, dtype=dtype)

    def shard(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return flat(n, dtype), flat(n), flat(n, dtype)

    one = torch.ones(1)
    return {
        "pack float32": (pack._transfer, lambda n: pack.pack([flat(n)], flat(n))),
        "pack bfloat16": (pack._transfer, lambda n: pack.pack([flat(n, B2)], flat(n, B2))),
        "pack float32 to bfloat16, scaled": (
            pack._transfer,
            lambda n: pack.pack([flat(n)], flat(n, B2), 0.3, one),
        ),
        "pack mixed": (pack._transfer, lambda n: pack.pack([flat(n), flat(n, B2), flat(n, H2)], flat(3 * n))),
        "unpack bfloat16 to float32, averaged": (
            pack._transfer,
            lambda n: pack.unpack(flat(n, B2), [flat(n)], divisor=3.0),
        ),
        "scale float32": (scale._scale, lambda n: scale.scale_([flat(n)], 3.0, 0.5, one)),
        "scale bfloat16": (scale._scale, lambda n: scale.scale_([flat(n, B2)], 3.0, 0.5, one)),
        "partial norms float32": (norm._partial_norms, lambda n: norm.norm([flat(n)])),
        "partial norms bfloat16": (norm._partial_norms, lambda n: norm.norm([flat(n, B2)])),
        "whole norm": (norm._whole_norm, lambda n: norm.norm([flat(n)])),
        "sgd": (
            step._sgd,
            lambda n: step.sgd_step(*shard(n, B2), flat(n), lr=0.1, momentum=0.9, weight_decay=0.1, coefficient=one),
        ),
        "adamw": (
            step._adamw,
            lambda n: step.adamw_step(*shard(n, B2), flat(n), flat(n), step=1, lr=0.1, weight_decay=0.1),
        ),
        "fault: index of 32 bits": (
            pack._transfer,
            lambda n: pack.transfer([flat(n)], flat(n), True, 1.0, 1.0, None, index=tl.int32),
        ),
        "fault: divide": (
            faults.divide_approximately,
            lambda n: faults.divide_approximately[(1,)](flat(n), n, 3.0, BLOCK=1024),
        ),
        "fault: length": (
            faults.a_kernel_for_every_length,
            lambda n: faults.a_kernel_for_every_length[(1,)](flat(n), COUNT=n, BLOCK=1024),
        ),
    }


def main() -> None:
    """Compiles everything."""
    triton.runtime.driver.set_active(CompileOnly())
    run = JITFunction.run
    launched: list[str] = []

    def stop_short(self: Any, *arguments: Any, warmup: bool, **named: Any) -> Any:
        launched.append(self.__name__)
        return run(self, *arguments, warmup=True, **named)

    JITFunction.run = stop_short
    for module in (table, step):
        vars(module)["require_kernels"] = lambda device: None  # CPU tensors stand for CUDA's: no kernel will touch them
    found: dict[str, dict[str, Any]] = {}
    for name, (kernel, call) in calls().items():
        kernel.device_caches.clear()
        call(2**20)
        ptx = [program.asm["ptx"] for program in programs(kernel)][-1]
        for length in LENGTHS:
            call(length)
        found[name] = {"ptx": ptx, "programs": len(programs(kernel))}
    many = [torch.zeros(17) for _ in range(1000)]
    whole: dict[str, Callable[[], object]] = {
        "pack": lambda: pack.pack(many, torch.zeros(17_000)),
        "unpack": lambda: pack.unpack(torch.zeros(17_000), many),
        "average and clip": lambda: scale.average_and_clip_(many, 2.0, 1.0),
    }
    for name, launch in whole.items():
        launched.clear()
        launch()
        found[f"a thousand: {name}"] = {"launches": list(launched)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
