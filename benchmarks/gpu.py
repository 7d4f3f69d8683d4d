"""Everything about kernels and worlds that needs a GPU, in parts that fit into minutes and go on where they stopped.

    python -m lockstep.benchmarks.gpu --budget 240          # as much as fits, the most telling first
    python -m lockstep.benchmarks.gpu --budget 240          # again: what is still missing
    python -m lockstep.benchmarks.gpu kernels plot          # some parts only
    python -m lockstep.benchmarks.gpu --dry-run             # all of it without a GPU, on tiny tensors

What is done is kept in the folder after each unit: `results.json`, the table, the plot, and a log for each command. A
unit is begun only if the budget has as much time left as it should take, and a command is ended with it.
"""

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lockstep.benchmarks.units import NotDone, Unit

ROOT = Path(__file__).parents[2]
TABLE = "kernels.txt"


@dataclass(frozen=True)
class Run:
    """A call of this script: where its files are, and whether it does without a GPU."""

    folder: Path
    dry: bool

    def command(self, name: str, command: list[str], limit: float, **environment: str) -> str:
        """Run a command and return its end in words; its output is in the folder. Raises NotDone if time ran out."""
        log = self.folder / f"{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        interpret = "1" if self.dry else "0"
        with log.open("a") as out:
            child = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "TRITON_INTERPRET": interpret, **environment},
                start_new_session=True,
            )
            try:
                code = child.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                raise NotDone(f"stopped after {limit:.0f} s, see {log}") from None
        return "ok" if code == 0 else f"FAILED with {code}, see {log}"


def compile_ahead(run: Run) -> Iterator[Unit]:
    """Compiles what the laws draw, on all cores, into Triton's cache on disk."""
    command = [sys.executable, "-m", "lockstep.properties.kernels.ahead"]
    yield Unit("all variants", 60, lambda left: run.command("compile", command, left))


def device(run: Run) -> Iterator[Unit]:
    """Check what only a GPU can show, and the cases that are always tried."""
    command = [sys.executable, "-m", "lockstep.benchmarks.on_device"]
    yield Unit("cases", 40, lambda left: run.command("device", command, left))


def kernel_laws(run: Run) -> Iterator[Unit]:
    """P17, law by law."""
    from lockstep.benchmarks import laws

    for name, do in laws.of_kernels(run.dry):
        yield Unit(name, 20, do)


def sanitizer(run: Run) -> Iterator[Unit]:
    """The cases that are always tried, under compute-sanitizer where it is installed."""
    tool = shutil.which("compute-sanitizer")
    command = [sys.executable, "-m", "lockstep.benchmarks.on_device", "--cases"]
    if tool and not run.dry:
        # The caching allocator hides what is out of bounds from the sanitizer.
        plain = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        watched = [tool, "--error-exitcode", "9", *command]
        yield Unit("cases", 80, lambda left: run.command("sanitizer", watched, left, **plain))


def kernels(run: Run) -> Iterator[Unit]:
    """Bandwidth, by the clock of the device and of the host."""
    from lockstep.benchmarks import kernels

    def bind(unit: kernels.Unit) -> Unit:
        return Unit(unit.name, 5, lambda left: list(kernels.measure(unit)))

    sizes, tensors = (TINY, 5) if run.dry else (SIZES, 1000)
    yield from map(bind, kernels.units(sizes, tensors))


SIZES: tuple[float, ...] = (64, 256, 1024)  # MiB
TINY: tuple[float, ...] = (1 / 64, 1 / 16)


def worlds(run: Run) -> Iterator[Unit]:
    """The central laws on NCCL and on gloo with CUDA tensors, ranks sharing a GPU."""
    from lockstep.benchmarks import laws

    for name, do in laws.units(run.dry):
        yield Unit(name, 15, do)


def compiled_peers(run: Run) -> Iterator[Unit]:
    """torch.compile of the plain loop over a model's gradients, which takes a minute to compile."""
    from lockstep.benchmarks import kernels

    def bind(unit: kernels.Unit) -> Unit:
        return Unit(unit.name, 60, lambda left: list(kernels.measure(unit)))

    yield from map(bind, kernels.compiled(run.dry))


def tuning(run: Run) -> Iterator[Unit]:
    """Other choices of bytes and warps for a program of `pack`."""
    from lockstep.benchmarks import tuning

    size, tensors = (TINY[0], 5) if run.dry else (256, 1000)
    for name, nbytes, warps in list(tuning.choices())[: 1 if run.dry else None]:
        yield Unit(name, 5, partial(tuning.shares, size, tensors, nbytes, warps))


PARTS: dict[str, Callable[[Run], Iterator[Unit]]] = {
    "device": device,
    "kernels": kernels,
    "compile": compile_ahead,
    "laws": kernel_laws,
    "worlds": worlds,
    "sanitizer": sanitizer,
    "tuning": tuning,
    "compiled": compiled_peers,
}


def main() -> None:
    """The parts that are asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.benchmarks.gpu", description=__doc__.partition("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all, in this order)")
    parser.add_argument("--folder", default="gpu-results", type=Path, help="for what is found (default: %(default)s)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="ends in time; the next run does the rest")
    parser.add_argument("--again", action="store_true", help="begin anew, whatever the folder has")
    parser.add_argument(
        "--dry-run", action="store_true", help="without a GPU, on tiny tensors: tries the script itself"
    )
    asked = parser.parse_args()
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}: there are {', '.join(PARTS)}")
    if asked.budget is not None and not asked.budget > 0:
        parser.error(f"--budget {asked.budget:g}: it is a number of seconds above 0")
    if asked.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports triton
    import torch

    if not torch.cuda.is_available() and not asked.dry_run:
        parser.exit(2, f"{parser.prog} needs a CUDA GPU, and torch {torch.__version__} sees none: --dry-run does not\n")
    sys.exit(everything(Run(asked.folder, asked.dry_run), asked.parts or list(PARTS), asked.budget, asked.again))


def everything(run: Run, parts: list[str], budget: float | None, again: bool) -> int:
    """Every unit that is still to be done, while there is time; then the table and the plot. A status for the shell."""
    from lockstep.benchmarks import roofline
    from lockstep.benchmarks.results import Results, about, table

    begun = time.monotonic()
    results = Results(run.folder, about(run.dry, code()), again)
    missing, failed = list[str](), list[str]()
    for part in parts:
        for unit in PARTS[part](run):
            name = f"{part}: {unit.name}"
            if not results.lacks(part, unit.name):
                continue
            start = time.monotonic()
            left = float("inf") if budget is None else budget - (start - begun)
            if left < unit.takes:
                missing.append(name)
                continue
            try:
                found = unit.run(left)
            except NotDone as error:
                missing.append(f"{name} ({error})")
                continue
            took = time.monotonic() - start
            results.add(part, unit.name, found, took)
            words = found if isinstance(found, str) else "done"
            failed += [name] * ("FAILED" in str(found))
            print(f"{took:6.1f} s  {name}: {words}", flush=True)
    lines = table(results)
    (run.folder / TABLE).write_text("\n".join(lines) + "\n")
    print("", *lines, "", sep="\n")
    print(f"plot: {roofline.draw(results) or 'none, as matplotlib is not installed or nothing was measured'}")
    for name in missing:
        print(f"still missing: {name}")
    return 1 if failed else 3 if missing else 0


def code() -> str:
    """A few letters that stand for the kernels as they are."""
    files = sorted((ROOT / "lockstep" / "impls" / "kernels").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:10]


if __name__ == "__main__":
    main()
