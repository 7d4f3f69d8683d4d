"""Checks of kernels that need a GPU, and the cases that are always tried: `python -m lockstep.benchmarks.on_device`.

`--cases`: these alone, as compute-sanitizer watches them. Without a GPU they run in Triton's interpreter.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch

from lockstep.impls.kernels.launch import Launcher
from lockstep.impls.kernels.norm import norm
from lockstep.impls.kernels.pack import pack
from lockstep.impls.kernels.scale import average_and_clip_
from lockstep.impls.kernels.step import sgd_step
from lockstep.impls.kernels.table import Table
from lockstep.properties.kernels import cases as drawn
from lockstep.properties.kernels import reference, runner
from lockstep.properties.kernels.case import Case
from lockstep.properties.kernels.comparing import must_equal


def direct() -> None:
    """Check what only a GPU can show. Raises AssertionError."""
    small = [torch.randn(17, device="cuda") for _ in range(1000)]
    table, bucket = Table.of(small), torch.empty(17_000, device="cuda")
    require(launches(lambda: pack(table, bucket)) == 1, "a thousand tensors are packed in one launch")
    require(launches(lambda: average_and_clip_(table, 2.0, 1.0)) == 3, "averaged and clipped in three")
    for length in (1, 15, 16, 17, 1000, 8192, 10**6):
        x = torch.randn(length, device="cuda")
        pack([x], torch.empty_like(x), 0.5)
        sgd_step(x, x, x.clone(), lr=0.1)
        norm([x])
    if torch.cuda.mem_get_info()[0] > 12 * 2**30:
        count = 2**31 + 12_345
        source = torch.randint(0, 127, (count,), dtype=torch.int8, device="cuda")
        target = torch.full_like(source, -1)
        pack([source], target)
        require(torch.equal(source, target), "more than 2**31 elements are packed")
        del target
        half = source[: 2**31 + 5].view(torch.int8)
        found = torch.full((2**31 + 5,), -1, dtype=torch.int8, device="cuda")
        pack([half[:3], half[3:]], found)
        require(torch.equal(half, found), "also at offsets that are not aligned")
    print("all as it must be")


def launches(call: Callable[[], object]) -> int:
    """Count the Triton kernels that a call launches."""
    usual, seen = Launcher.__call__, list[str]()

    def counted(self: Launcher, *arguments: Any, **constants: Any) -> None:
        seen.append(self.kernel.__name__)
        usual(self, *arguments, **constants)

    with mock.patch.object(Launcher, "__call__", counted):
        call()
    return len(seen)


def require(holds: bool, words: str) -> None:
    """AssertionError, with the words, where it does not hold."""
    print("ok  " if holds else "NOT ", words, flush=True)
    if not holds:
        raise AssertionError(words)


def cases() -> None:
    """The cases that the properties always try, in this process, on the GPU."""

    def results(operation: str, case: Case) -> list[reference.Array]:
        request = {"implementation": "lockstep.impls.kernels.suite:Kernels", "operation": operation, **asdict(case)}
        found = runner.run(json.dumps(request), 0, 1)
        require(not found["spilled"], f"{operation} writes nothing else")
        out: list[reference.Array] = found["out"]
        return out

    for case in drawn.LONG:
        must_equal(results("pack", case), [reference.packed(case)], numbers=False)
        must_equal(results("round trip", case), [reference.values(t, case.kind) for t in case.tensors], numbers=False)
    for case in drawn.MIXED:
        must_equal(results("unpack", case), reference.unpacked(case))
        must_equal(results("scale_", case), reference.scaled(case, case.coefficient))
    for case in drawn.NORMS:
        results("norm", case)
    print("cases done", flush=True)


def main() -> None:
    """The cases, and what only a GPU can show where there is one."""
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.benchmarks.on_device", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--cases", action="store_true", help="only the cases that are always tried")
    asked = parser.parse_args()
    cases()
    if not asked.cases and torch.cuda.is_available():
        direct()


if __name__ == "__main__":
    main()
