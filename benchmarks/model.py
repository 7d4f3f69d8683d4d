"""The bandwidth that kernels should reach, from bytes and programs: what a design promises before a GPU has seen it.

A multiprocessor holds some programs at a time, as many as registers and threads allow. Each goes round the same way: it
waits (for its start, for what it looks up, for the first of its data, for divisions), then takes its bytes through the
multiprocessor's share of memory, where it queues with the others; then the next program takes its place. That is a
closed queueing network with one queue and one delay, and mean value analysis (Reiser and Lavenberg, 1980) gives its
throughput. Programs that wait are hidden where there are enough others, and no more is in this model.

The delays are those that explain what an H200 did with the kernels of 2026-11-27, see `MEASURED`; the bandwidth is that
of a device-to-device copy.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.benchmarks.shapes import Shapes, even, gpt2, llama, mixed


@dataclass(frozen=True)
class Gpu:
    """Seconds, bytes, and what a multiprocessor has."""

    name: str
    multiprocessors: int
    copy: float  # bytes a second, those read and those written, of a large device-to-device copy
    registers: int = 65536
    threads: int = 2048
    programs: int = 32
    start: float = 0.35e-6  # until a program's first bytes come, when nothing else waits
    lookup: float = 0.16e-6  # a load whose address another load gives
    division: float = 0.11e-6  # a correctly rounded division or square root, one element of a thread after the other
    launch: float = 2.7e-6  # of a kernel that a CUDA graph replays, its last programs included


H200 = Gpu("NVIDIA H200", 132, 4.12e12)


@dataclass(frozen=True)
class Program:
    """The needs of a kernel's program. ``moved``: bytes read and written; ``divisions``: of each thread, one by one."""

    moved: float
    threads: int
    registers: int
    lookups: int = 1
    divisions: int = 0


def resident(program: Program, gpu: Gpu = H200) -> int:
    """Programs that a multiprocessor holds; registers are given out in portions of 256 for each warp."""
    of_a_warp = -(-program.registers * 32 // 256) * 256
    by_registers = gpu.registers // of_a_warp // (program.threads // 32)
    return max(1, min(gpu.programs, gpu.threads // program.threads, by_registers))


def share(program: Program, gpu: Gpu = H200) -> float:
    """The part of the copy's bandwidth that many such programs reach, between 0 and 1."""
    service = program.moved / (gpu.copy / gpu.multiprocessors)
    delay = gpu.start + gpu.lookup * program.lookups + gpu.division * program.divisions
    queued = throughput = 0.0
    for number in range(1, resident(program, gpu) + 1):
        here = service * (1 + queued)
        throughput = number / (here + delay)
        queued = throughput * here
    return throughput * service


def seconds(program: Program, programs: float, gpu: Gpu = H200) -> float:
    """Estimate the time of that many programs, launched by a CUDA graph."""
    return gpu.launch + programs * program.moved / (share(program, gpu) * gpu.copy)


def of_copy(program: Program, programs: float, gpu: Gpu = H200) -> float:
    """The same as a share of what a copy that moves as many bytes takes."""
    return (gpu.launch + programs * program.moved / gpu.copy) / seconds(program, programs, gpu)


THREADS = 128
# What ptxas gives each shipped kernel, at most; the tests hold it. A piece is looked up once.
REGISTERS = {
    "move": 32,
    "narrow": 52,
    "widen": 32,
    "scale float32": 40,
    "scale bfloat16": 56,
    "norm float32": 32,
    "norm bfloat16": 48,
    "whole norm": 64,
    "sgd": 32,
    "adamw": 64,
}
LOOKUPS = {"sgd": 0, "adamw": 0, "whole norm": 0}


def program(task: str, moved: float, divisions: int = 0) -> Program:
    """A program of a shipped kernel, that moves so many bytes."""
    return Program(moved, THREADS, REGISTERS[task], LOOKUPS.get(task, 1), divisions)


# What was measured: the kernels before they were cut by bytes, on the H200, 2026-11-27 (`kernels_on_h200.txt`), by name
# the program and the share of the copy, in %. Registers are what ptxas said of those kernels.
KIB = 1024
ACCURACY = 10  # points of per cent between the model and each figure, at most
MEASURED = {
    "pack 256 MiB, 1 tensor": (Program(64 * KIB, 256, 254), 84.9),
    "pack 1 GiB, 1 tensor": (Program(64 * KIB, 256, 254), 88.5),
    "pack 256 MiB bfloat16, 1 tensor": (Program(32 * KIB, 256, 254), 70.6),
    "pack 256 MiB, 1000 tensors": (Program(58.3 * KIB, 256, 254, lookups=11), 48.5),
    "pack 1 GiB, 1000 tensors": (Program(62.1 * KIB, 256, 254, lookups=11), 49.1),
    "unpack 1 GiB, 1 tensor": (Program(64 * KIB, 256, 254), 87.7),
    "average in place 1 GiB, 1 tensor": (Program(64 * KIB, 256, 254), 88.0),
    "SGD with momentum, 1 GiB of masters": (Program(4096 * 20, 256, 95, lookups=0), 91.7),
    "AdamW, 1 GiB of masters": (Program(4096 * 28, 256, 126, lookups=0, divisions=48), 68.8),
    "tensor by tensor 1 GiB, 1 tensor": (Program(8 * KIB, 128, 24, lookups=0), 96.2),
}


PIECE = 8192  # bytes of a tensor that a program takes
SHARD = 1024  # elements that a program of a step takes


def passes(task: str, size: int, shapes: Shapes) -> list[tuple[Program, int]]:
    """Launch by launch, what each program of a task needs and how many there are; ``size``: bytes of an element.

    ``task``: "move", "scale", "norm", "average and clip", "cast" (between 4 and 2 bytes), "sgd" or "adamw"; one that
    ends in "by ranks" divides by a number that is no power of two.
    """
    elements = sum(math.prod(shape) for shape in shapes)
    if task in ("sgd", "adamw"):
        count = -(-elements // SHARD)
        moved, divisions = {"sgd": (20, 0), "adamw": (28, 3 * SHARD // THREADS)}[task]
        return [(program(task, moved * elements / count, divisions), count)]
    count = sum(-(-math.prod(shape) * size // PIECE) for shape in shapes)
    each, dtype = elements * size / count, "float32" if size == 4 else "bfloat16"
    name, by_ranks, _ = task.partition(" by ranks")
    divisions = PIECE // size // THREADS if by_ranks else 0
    normed = [(program(f"norm {dtype}", each, divisions), count), (program("whole norm", 2**14), 1)]
    scaled = [(program(f"scale {dtype}", 2 * each, divisions), count)]
    found = {
        "move": [(program("move", 2 * each), count)],
        "scale": scaled,
        "norm": normed,
        "average and clip": [*normed, *scaled],
        "cast": [(program("narrow" if size == 4 else "widen", each * (1.5 if size == 4 else 3)), count)],
    }
    return found[name]


def promised(launches: list[tuple[Program, int]], copied: int, gpu: Gpu = H200) -> float:
    """The share of the copy's bandwidth, of one that moves ``copied`` bytes, launches and all."""
    moved = sum(each.moved * count for each, count in launches)
    ours = sum(seconds(each, count, gpu) for each, count in launches)
    return (moved / ours) / (copied / (gpu.launch + copied / gpu.copy))


TASKS = ("move", "scale", "scale by ranks", "norm", "average and clip", "cast")


def lines(gpu: Gpu = H200) -> Iterator[str]:
    """The model beside what was measured, and what it promises of the kernels as they are."""
    yield f"Share of a copy's bandwidth on an {gpu.name}, in %: measured of the kernels of 2026-11-27, and by the model"
    for name, (each, measured) in MEASURED.items():
        yield f"  {name:40}{measured:6.1f}{100 * share(each, gpu):8.1f}   {resident(each, gpu)} programs at a time"
    yield "What it promises of those that ship, replayed from a CUDA graph"
    yield " " * 26 + "".join(f"{task:>18}" for task in TASKS)
    for label, size, shapes in lists():
        copied = 2 * size * sum(math.prod(shape) for shape in shapes)
        values = "".join(f"{100 * promised(passes(task, size, shapes), copied, gpu):18.0f}" for task in TASKS)
        yield f"  {label:24}{values}"
    for task in ("sgd", "adamw"):
        found = [f"{mib} MiB {100 * promised(passes(task, 4, [(mib * 2**18,)]), mib * 2**21):.0f}" for mib in (64, 256)]
        yield f"  {task} on masters of {', of '.join(found)}"


def lists() -> Iterator[tuple[str, int, Shapes]]:
    """Label, bytes of an element, and shapes."""
    for size, dtype in ((4, "float32"), (2, "bfloat16")):
        for mib in (64, 256, 1024):
            elements = mib * 2**20 // size
            yield f"{mib} MiB {dtype}, 1", size, even(elements, 1)
            yield f"{mib} MiB {dtype}, 1000", size, mixed(elements, 1000)
    yield "GPT-2 float32", 4, gpt2()
    yield "Llama 1B bfloat16", 2, llama()


def main() -> None:
    """Prints the model."""
    description = "The share of a copy's bandwidth that kernels should reach, beside what was measured."
    argparse.ArgumentParser(prog="python -m lockstep.benchmarks.model", description=description).parse_args()
    print(*lines(), sep="\n")


if __name__ == "__main__":
    main()
