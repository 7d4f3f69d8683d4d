"""Kernels compiled for a GPU on a machine without one: run as a program, in a process where nothing is interpreted.

The shipped functions are called as users call them, through Triton's own launcher, which types and specializes every
argument as at a real launch and compiles down to machine code; only the launch itself is left out. Prints JSON: for
each kind of call the PTX it would run, how many programs many lengths compile to, and how many launches a thousand
tensors take.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.jit import JITFunction

from lockstep.impls.faults import kernels_in_ptx as faults
from lockstep.impls.kernels import launch, norm, pack, scale, step, table

TARGET = GPUTarget("cuda", 90, 32)
F4, B2, H2 = torch.float32, torch.bfloat16, torch.float16
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 48, 127, 128, 1000, 4096, 8191, 8192, 8193, 2**15, 2**16 + 1, 100_000)


class CompileOnly:
    """What the launcher asks of a driver before anything runs."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Launches(CompileOnly):
    """What a program is launched by: notes what it is given, and runs nothing."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.utils = self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 2**17}

    def load_binary(self, *program: Any) -> tuple[int, ...]:
        return 0, 0, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        pass

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *given: self.given.append(given)


def launched_again() -> dict[str, Any]:
    """What a second call of kernels gives the launcher, and how often Triton looks at arguments by then."""
    driver, looked = Launches(), list[str]()
    triton.runtime.driver.set_active(driver)
    run = JITFunction.run

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        looked.append(self.__name__)
        return run(self, *arguments, **named)

    JITFunction.run = counted
    tensor, bucket = torch.zeros(5000), torch.zeros(5000, dtype=B2)
    kept = table.Table.of([tensor])
    for _ in range(2):
        driver.given.clear()
        pack.pack(kept, bucket, 0.5)
        step.sgd_step(tensor, tensor, tensor, lr=0.1)
    JITFunction.run = run
    grids = [given[:3] for given in driver.given]
    counts = [len(given) - 9 for given in driver.given]  # grid, stream, function, three of the launch, two hooks
    addresses = [kept.pieces.data_ptr(), bucket.data_ptr()]
    wanted = [len(pack._rewrite.arg_names), len(step._sgd.arg_names)]
    missing = [address for address in addresses if address not in driver.given[0]]
    return {"looked": looked, "grids": grids, "arguments": counts, "wanted": wanted, "missing": missing}


def programs(kernel: Any) -> list[Any]:
    """What a kernel has been compiled to so far."""
    return list(kernel.device_caches[0][0].values())


def registers(program: Any) -> dict[str, int]:
    """What ptxas says of a program: registers a thread, bytes of its stack, and of what it spills."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(program.asm["ptx"])
        file.flush()
        command = [get_ptxas(TARGET.arch).path, "-v", f"--gpu-name=sm_{TARGET.arch}a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    words = said.stdout + said.stderr
    named = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack",
        "spilled": r"(\d+) bytes spill stores",
    }
    return {name: int(re.search(pattern, words)[1]) for name, pattern in named.items()}  # type: ignore[index]


def calls() -> dict[str, tuple[Any, Callable[[int], object]]]:
    """By name, a kernel and a call of the function that launches it, for so many elements."""

    def flat(n: int, dtype: torch.dtype = F4) -> torch.Tensor:
        return torch.zeros(n, dtype=dtype)

    def shard(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return flat(n, dtype), flat(n), flat(n, dtype)

    one = torch.ones(1)
    moved, normed = pack._rewrite, norm._partial_norms
    return {
        "pack float32": (moved, lambda n: pack.pack([flat(n)], flat(n))),
        "pack bfloat16": (moved, lambda n: pack.pack([flat(n, B2)], flat(n, B2))),
        "pack float32 to bfloat16, scaled": (moved, lambda n: pack.pack([flat(n)], flat(n, B2), 0.3, one)),
        "pack mixed": (moved, lambda n: pack.pack([flat(n), flat(n, B2), flat(n, H2)], flat(3 * n))),
        "pack strided": (moved, lambda n: pack.pack([torch.zeros(n + 1, 2)[:, 0]], flat(n + 1))),
        "unpack float32": (moved, lambda n: pack.unpack(flat(n), [flat(n)])),
        "unpack bfloat16 to float32, averaged": (moved, lambda n: pack.unpack(flat(n, B2), [flat(n)], divisor=3.0)),
        "unpack float32 to bfloat16, averaged": (moved, lambda n: pack.unpack(flat(n), [flat(n, B2)], divisor=3.0)),
        "scale float32": (moved, lambda n: scale.scale_([flat(n)], 3.0, 0.5, one)),
        "scale bfloat16": (moved, lambda n: scale.scale_([flat(n, B2)], 3.0, 0.5, one)),
        "partial norms float32": (normed, lambda n: norm.norm([flat(n)])),
        "partial norms bfloat16": (normed, lambda n: norm.norm([flat(n, B2)])),
        "whole norm": (norm._whole_norm, lambda n: norm.norm([flat(n)])),
        "cut": (table._cut, lambda n: table.Table.of([flat(n)])),
        "sgd": (
            step._sgd,
            lambda n: step.sgd_step(*shard(n, B2), flat(n), lr=0.1, momentum=0.9, weight_decay=0.1, coefficient=one),
        ),
        "adamw": (
            step._adamw,
            lambda n: step.adamw_step(*shard(n, B2), flat(n), flat(n), step=1, lr=0.1, weight_decay=0.1),
        ),
        "fault: index of 32 bits": (
            table._cut,
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
        "fault: registers": (
            faults.holds_too_much,
            lambda n: faults.holds_too_much[(1,)](flat(2**15), flat(2**15), BLOCK=2**15, num_warps=1),
        ),
    }


def main() -> None:
    """Compiles everything."""
    for module in (table, step):
        vars(module)["require_kernels"] = lambda device: None  # CPU tensors stand for CUDA's: no kernel will touch them
    found: dict[str, dict[str, Any]] = {"a thousand: launched again": launched_again()}
    triton.runtime.driver.set_active(CompileOnly())
    run = JITFunction.run
    launched: list[str] = []

    def stop_short(self: Any, *arguments: Any, warmup: bool, **named: Any) -> Any:
        return run(self, *arguments, warmup=True, **named)

    def compile_alone(self: launch.Launcher, blocks: int, arguments: tuple[Any, ...], **constants: Any) -> None:
        launched.append(self.kernel.__name__)
        self.compiled(arguments, constants)

    JITFunction.run = stop_short
    launch.Launcher.__call__ = compile_alone  # type: ignore[method-assign]
    for name, (kernel, call) in calls().items():
        kernel.device_caches.clear()
        call(2**20)
        program = programs(kernel)[-1]
        for length in LENGTHS:
            call(length)
        found[name] = {"ptx": program.asm["ptx"], "programs": len(programs(kernel)), **registers(program)}
    many = [torch.zeros(17) for _ in range(1000)]
    kept, other = table.Table.of(many), [torch.zeros(17) for _ in range(1000)]
    whole: dict[str, Callable[[], object]] = {
        "pack": lambda: pack.pack(many, torch.zeros(17_000)),
        "pack, table kept": lambda: pack.pack(kept, torch.zeros(17_000)),
        "pack, other addresses": lambda: pack.pack(kept.at(other), torch.zeros(17_000)),
        "unpack, table kept": lambda: pack.unpack(torch.zeros(17_000), kept),
        "average and clip, table kept": lambda: scale.average_and_clip_(kept, 2.0, 1.0),
    }
    for name, call_it in whole.items():
        launched.clear()
        call_it()
        found[f"a thousand: {name}"] = {"launches": list(launched)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
