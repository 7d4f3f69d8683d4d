"""Compiles what the laws of kernels draw, on all cores: `python -m lockstep.properties.kernels.ahead [KERNELS]`.

Every variant meets a small case, dense and with strides, in one of many processes; what Triton compiles there is in its
cache on disk when the laws are held. Kernels that fail here are not told: the laws will.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import Any

from lockstep.properties.kernels import device, runner, steps
from lockstep.properties.kernels.case import Case, Tensor
from lockstep.properties.kernels.cases import MOVED
from lockstep.properties.kernels.reference import Array
from lockstep.properties.kernels.under_test import Kernels, plain
from lockstep.properties.kernels.variants import FACTORS, FEW, FEW_STEPS, NUMBERS, Variant

SHIPPED = "lockstep.impls.kernels.suite:Kernels"
LISTS = ("pack", "unpack", "scale_", "norm", "clip_coefficient", "average_and_clip_")
MOST = 16  # processes; each uses half a gigabyte of GPU memory


class Here(Kernels):
    """Kernels that run in this process."""

    def run(self, operation: str, **request: Any) -> list[Array]:
        """As in a process of their own, but without supervision."""
        data = {"implementation": self.name, "operation": operation, **request}
        out: list[Array] = runner.run(json.dumps(data, default=plain), 0, 1)["out"]
        return out


Task = Callable[[Here], object]


def tensors(dtypes: tuple[str, ...], strided: bool) -> tuple[Tensor, ...]:
    """One tensor of each dtype. If ``strided``, it has every second element."""
    return tuple(Tensor((40,), dtype, 0, (0,), (2 if strided else 1,), seed) for seed, dtype in enumerate(dtypes))


def case_of(variant: Variant, strided: bool) -> Case:
    """A small case of a variant."""
    chosen = tensors(variant.dtypes, strided)
    bucket = Tensor((sum(tensor.count for tensor in chosen),), variant.bucket, 0, seed=97)
    factor = FACTORS[0] if variant.coefficient else None
    return Case(chosen, "general", bucket, variant.divisors[0], 0.5, factor)


def tasks() -> Iterator[Task]:
    """Every variant, called as the laws do."""
    for strided in (False, True):
        for dtype in MOVED:
            case = Case(tensors((dtype,), strided), "distinct", Tensor((40,), dtype))
            yield partial(Here.run_case, operation="round trip", case=case)
        for variant in FEW:
            for operation in LISTS:
                yield partial(_list, operation, case_of(variant, strided))
        for source, dtype in product(NUMBERS, NUMBERS):
            yield partial(Here.run, operation="cast", tensors=tensors((source,), strided), kind="general", dtype=dtype)
    for step, cuts, function in product(FEW_STEPS, ((), (1,)), ("sgd_step", "adamw_step")):
        factor = FACTORS[0] if step.coefficient else None
        shard = steps.Shard(40, step.param, step.grad, 2, step.settings, cuts, factor, 0.5)
        yield partial(steps.run, shard=shard, function=function)


def _list(operation: str, case: Case, kernels: Here) -> None:
    scaling = [name for name in ("divisor", "scale", "coefficient") if name in kernels.functions[operation]]
    kernels.run_case(operation, kernels.claimed_of(operation, case, scaling), max_norm=0.5)


def run(name: str, places: Sequence[int]) -> int:
    """Run the tasks at these places in this process. Returns the number that finished."""
    kernels = Here(name, None, runner.describe(json.dumps(name), 0, 1)["functions"])  # type: ignore[arg-type]
    chosen, ended = list(tasks()), 0
    for place in places:
        with contextlib.suppress(Exception):
            chosen[place](kernels)
            ended += 1
    return ended


def main() -> None:
    """Run all tasks in as many processes as there are cores."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.kernels.ahead", description=__doc__)
    parser.add_argument("kernels", nargs="?", default=SHIPPED, help="package.module:Class (default: what ships)")
    name = parser.parse_args().kernels
    device.choose()
    start, count = time.monotonic(), len(list(tasks()))
    processes = max(1, min(MOST, os.cpu_count() or 1))
    parts = [range(first, count, processes) for first in range(processes)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        ended = sum(pool.map(partial(run, name), parts))
    print(f"{ended} of {count} variants ran, on {processes} processes, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
