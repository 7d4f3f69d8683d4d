"""Everything about kernels that needs a GPU, in ten minutes or so: `python -m lockstep.benchmarks.gpu [FOLDER]`.

Runs P17's properties compiled, what only a GPU can show (more than 2**31 elements, one program for all lengths,
launches counted), the same cases under compute-sanitizer where it runs, and the benchmarks. Logs go to the folder; a
summary is printed last.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stage:
    """One command with its limit in seconds."""

    name: str
    command: tuple[str, ...]
    limit: int


def stages() -> list[Stage]:
    """In the order in which they run."""
    python = (sys.executable, "-m")
    workers = ("-n", str(min(8, os.cpu_count() or 1)))
    found = [
        Stage("on the device", (*python, "lockstep.benchmarks.gpu", "--direct"), 90),
        Stage("properties", (*python, "pytest", "properties/test_kernels.py", "-q", *workers), 300),
        Stage("benchmarks", (*python, "lockstep.benchmarks.kernels"), 200),
    ]
    if shutil.which("compute-sanitizer"):
        tool = ("compute-sanitizer", "--error-exitcode", "9")
        found.append(
            Stage("compute-sanitizer", (*tool, sys.executable, "-m", "lockstep.benchmarks.gpu", "--cases"), 80)
        )
    return found


def run(stage: Stage, folder: Path) -> str:
    """How a stage ended, in a line. Its output is in the folder."""
    # The caching allocator hides what is out of bounds from the sanitizer.
    plain = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if stage.name == "compute-sanitizer" else {}
    log = folder / f"{stage.name.replace(' ', '-')}.log"
    start = time.monotonic()
    with log.open("w") as out:
        try:
            ran = subprocess.run(
                stage.command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **plain, "PYTHONUNBUFFERED": "1", "TRITON_INTERPRET": "0"},
                timeout=stage.limit,
                check=False,
            )
            ended = "ok" if ran.returncode == 0 else f"FAILED with {ran.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped at its limit of {stage.limit} s"
    return f"{stage.name:20}{ended:32}{time.monotonic() - start:6.0f} s   {log}"


def direct() -> None:
    """What only a GPU can show. Raises AssertionError."""
    from lockstep.impls.kernels import norm, pack, step
    from lockstep.impls.kernels.pack import pack as pack_
    from lockstep.impls.kernels.scale import average_and_clip_
    from lockstep.impls.kernels.table import Table

    cases()
    small = [torch.randn(17, device="cuda") for _ in range(1000)]
    table, bucket = Table.of(small), torch.empty(17_000, device="cuda")
    require(launches(lambda: pack_(small, bucket)) == 1, "a thousand tensors are packed in one launch")
    require(launches(lambda: average_and_clip_(table, 2.0, 1.0)) == 3, "averaged and clipped in three")
    for length in (1, 15, 16, 17, 1000, 8192, 10**6):
        x = torch.randn(length, device="cuda")
        pack_([x], torch.empty_like(x), 0.5)
        step.sgd_step(x, x, x.clone(), lr=0.1)
    for kernel in (pack._transfer, step._sgd, norm._whole_norm):
        lengths = len(kernel.device_caches[torch.cuda.current_device()][0])
        print(f"{kernel.__name__}: {lengths} programs")
    if torch.cuda.mem_get_info()[0] > 12 * 2**30:
        count = 2**31 + 12_345
        source = torch.randint(0, 127, (count,), dtype=torch.int8, device="cuda")
        target = torch.full_like(source, -1)
        pack_([source], target)
        require(torch.equal(source, target), "more than 2**31 elements are packed")
        del target
        half = source[: 2**31 + 5].view(torch.int8)
        found = torch.full((2**31 + 5,), -1, dtype=torch.int8, device="cuda")
        pack_([half[:3], half[3:]], found)
        require(torch.equal(half, found), "also at offsets that are not aligned")
    print("all as it must be")


def launches(call: Callable[[], object]) -> int:
    """How many of Triton's kernels a call launches."""
    from triton.runtime.jit import JITFunction

    run, seen = JITFunction.run, list[str]()

    def counted(self: JITFunction, *arguments: object, **named: object) -> object:
        seen.append(self.__name__)
        return run(self, *arguments, **named)

    JITFunction.run = counted
    try:
        call()
    finally:
        JITFunction.run = run
    return len(seen)


def require(holds: bool, words: str) -> None:
    """AssertionError, with the words, where it does not hold."""
    print("ok  " if holds else "NOT ", words, flush=True)
    if not holds:
        raise AssertionError(words)


def cases() -> None:
    """The cases that the properties always try, in this process, on the GPU."""
    from lockstep.properties.kernels import cases, reference, runner
    from lockstep.properties.kernels.case import Case
    from lockstep.properties.kernels.comparing import must_equal

    def results(operation: str, case: Case) -> list[reference.Array]:
        request = {"implementation": "lockstep.impls.kernels.suite:Kernels", "operation": operation, **asdict(case)}
        found = runner.run(json.dumps(request), 0, 1)
        require(not found["spilled"], f"{operation} writes nothing else")
        out: list[reference.Array] = found["out"]
        return out

    for case in cases.LONG:
        must_equal(results("pack", case), [reference.packed(case)], numbers=False)
        must_equal(results("round trip", case), [reference.values(t, case.kind) for t in case.tensors], numbers=False)
    for case in cases.MIXED:
        must_equal(results("unpack", case), reference.unpacked(case))
        must_equal(results("scale_", case), reference.scaled(case, case.coefficient))
    for case in cases.NORMS:
        results("norm", case)
    print("cases done", flush=True)


def main() -> None:
    """The whole, or the part that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.benchmarks.gpu", description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", nargs="?", default="gpu-logs", type=Path, help="for the logs (default: %(default)s)")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--direct", action="store_true", help="only what a GPU alone can show")
    alone.add_argument("--cases", action="store_true", help="only the cases that compute-sanitizer watches")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"lockstep.benchmarks.gpu needs a CUDA GPU, and torch {torch.__version__} sees none here")
    if asked.direct:
        direct()
    elif asked.cases:
        cases()
    else:
        everything(asked.folder)


def everything(folder: Path) -> None:
    """Every stage, then the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = [run(stage, folder) for stage in stages()]
    table = folder / "benchmarks.log"
    print(table.read_text() if table.exists() else "")
    print("\n".join(summary))
    if any("ok" not in line for line in summary):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
