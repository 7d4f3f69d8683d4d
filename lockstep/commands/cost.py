"""`lockstep cost`: bytes held, bytes moved and seconds of a training step, for a given model and machine."""

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from lockstep.oracle import estimate
from lockstep.oracle.estimate import Question
from lockstep.oracle.language_models import MODELS
from lockstep.oracle.recipes import STATE_TENSORS, recipe
from lockstep.pictures.lanes import quantity

TENSORS = 7  # per layer, of a model of which only its number of parameters is known
CAPS = tuple(2**power for power in range(18, 33, 2))  # bytes, of the table
DEPTHS = (0, 1, 2)
GIGA = 10**9


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the answers, or write them where that is asked for."""
    _add_to(parser)
    told = parser.parse_args(arguments)
    try:
        asked = _question(told)
        answer = answers(asked)
    except ValueError as error:
        parser.error(str(error))
    if told.json:
        print(json.dumps(answer, indent=1))
        return
    print("\n".join(_lines(asked, answer)))
    for file, write in ((told.svg, "figure"), (told.html, "page")):
        if file:
            try:
                from lockstep.pictures import plots
            except ImportError:
                parser.error("--svg and --html need matplotlib, which is not installed: pip install matplotlib")
            Path(file).write_text(getattr(plots, write)(answer), "utf-8")


def _add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--parameters", metavar="N", type=float, help="number of parameters, such as 7e9 (default: 7.5e9)")
    add(
        "--model", metavar="NAME", help=f"one of {', '.join(MODELS)}; or my_models:make, a function that makes a module"
    )
    add("--layers", metavar="N", type=int, default=32, help="layers, which stage 3 gathers one by one (default: 32)")
    add("--ranks", metavar="N", type=int, default=64, help="world size (default: 64)")
    add(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        default="bfloat16",
        help="of parameters and gradients in forward and backward (default: bfloat16)",
    )
    add("--optimizer", choices=STATE_TENSORS, default="adam", help="(default: adam)")
    add("--fp32-gradients", action="store_true", help="keep gradients in float32 too, and reduce those")
    add("--bucket-cap", metavar="MIB", type=float, default=25, help="largest bucket (default: 25)")
    add("--latency", metavar="US", type=float, default=20, help="of one message, in microseconds (default: 20)")
    add("--bandwidth", metavar="GB/S", type=float, default=150, help="of one rank within a node (default: 150)")
    add("--node", metavar="N", type=int, default=0, help="ranks per node (default: all ranks)")
    add("--between", metavar="GB/S", type=float, default=25, help="bandwidth of one rank between nodes (default: 25)")
    add("--tflops", metavar="N", type=float, default=150, help="speed that one rank reaches (default: 150)")
    add("--micro-batch", metavar="N", type=int, default=2, help="samples per rank and micro-batch (default: 2)")
    add("--sequence", metavar="N", type=int, default=1024, help="tokens per sample (default: 1024)")
    add("--batch", metavar="N", type=int, help="samples of a step over all ranks (default: no accumulation)")
    add("--json", action="store_true", help="print the answers as data")
    add("--svg", metavar="FILE", help="write curves and bars (needs matplotlib)")
    add("--html", metavar="FILE", help="write a page with them (needs matplotlib)")


def _question(told: argparse.Namespace) -> Question:
    """The question. Raises ValueError, in one line."""
    for name in ("bandwidth", "between", "tflops"):
        if getattr(told, name) <= 0:
            raise ValueError(f"--{name} {getattr(told, name):g}: give more than 0")
    if told.model and told.parameters is not None:
        raise ValueError("--parameters and --model: give one of them")
    count, transformer = round(told.parameters or 7.5e9), MODELS.get(told.model)
    pieces = told.layers * TENSORS
    tensors = tuple((count + index) // pieces for index in range(pieces))
    if transformer is not None:
        tensors = tuple(each for _, each in transformer.tensors())
    elif told.model:
        tensors = _own(told.model)
    return Question(
        tensors,
        told.ranks,
        transformer.blocks if transformer else told.layers,
        recipe(told.dtype, told.optimizer, told.fp32_gradients),
        round(told.bucket_cap * 2**20),
        Fraction(told.latency) / 10**6,
        Fraction(told.bandwidth) * GIGA,
        Fraction(told.tflops) * 10**12,
        told.micro_batch,
        told.sequence,
        told.batch,
        told.node,
        Fraction(told.between) * GIGA,
        transformer,
    )


def _own(name: str) -> tuple[int, ...]:
    """The sizes of the parameters of a module that a user's function makes, in the order of registration.

    Raises ValueError, in one line, if it makes none.
    """
    from lockstep.properties.claim import on_one_line
    from lockstep.properties.ranks.lookup import find
    from lockstep.properties.running.import_path import look_here_first

    look_here_first(Path.cwd())
    make = find(name)
    try:
        made = make()
    except Exception as error:  # of the user's function
        raise ValueError(f"--model {name}: calling it without arguments failed: {on_one_line(error)}") from None
    module = made[0] if isinstance(made, tuple | list) and made else made
    if not hasattr(module, "parameters"):
        raise ValueError(f"--model {name}: it returned {on_one_line(made)}; return a torch.nn.Module")
    return tuple(parameter.numel() for parameter in module.parameters())


def answers(asked: Question) -> dict[str, Any]:
    """All that is told, as plain data: bytes, seconds and shares."""
    line, (sweep, best) = estimate.step(asked), estimate.sweep(asked)
    ranks = estimate.powers(asked.ranks)
    prefetched = {depth: estimate.prefetched(asked, depth) for depth in DEPTHS}
    stages = range(4)
    return {
        "parameters": asked.parameters,
        "tensors": len(asked.tensors),
        "ranks": asked.ranks,
        "memory": [_floats(estimate.bytes_held(asked, stage)) for stage in stages],
        "memory_by_ranks": {
            n: [float(sum(estimate.bytes_held(asked, stage, n).values())) for stage in stages] for n in ranks
        },
        "elements_moved": [float(estimate.elements_moved(asked, stage)) for stage in stages],
        "volumes": [[_volume(each) for each in estimate.volumes(asked, stage)] for stage in stages],
        "batch": estimate.accumulation(asked),
        "step": {
            **_floats({name: getattr(line, name) for name in ("forward", "backward", "optimizer", "step", "exposed")}),
            **_floats({"overlap": line.overlap, "efficiency": line.efficiency}),
            "buckets": [[float(b.bytes), float(b.ready), float(b.start), float(b.end)] for b in line.buckets],
        },
        "sweep": {cap: float(seconds) for cap, seconds in sweep.items()},
        "cap": asked.cap,
        "best_cap": best,
        "cap_costs": float(sweep[asked.cap] / sweep[best] - 1),
        "scaling": {n: float(each) for n, each in estimate.scaling(asked, ranks).items()},
        "all_reduce": _floats(estimate.all_reduces(asked)),
        "prefetch": {depth: _floats({"step": p.step, "exposed": p.exposed}) for depth, p in prefetched.items()},
    }


def _volume(of: estimate.Volume) -> dict[str, Any]:
    return {"collective": of.collective, "calls": of.calls, "bytes": float(of.bytes)}


def _floats(values: dict[str, Fraction]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _lines(asked: Question, answer: dict[str, Any]) -> Iterator[str]:
    """The answers in lines of at most 80 characters."""
    width = min(100, shutil.get_terminal_size().columns)
    yield f"{quantity(asked.parameters)} parameters in {answer['tensors']} tensors, {asked.ranks} ranks"
    yield f"batch: {answer['batch']}"
    yield "\nMemory per rank, in GB, and what each rank sends in a step"
    kinds = list(answer["memory"][0])
    names = [kind.split()[0] for kind in kinds]
    heads = " ".join(f"{name:>{max(9, len(name))}}" for name in names)
    yield f"{'stage':5} {'bytes/param':>11} {heads} {'total':>7} {'sends/param':>11}"
    for stage, held in enumerate(answer["memory"]):
        total = sum(held.values())
        fixed = total - held.get("activations (approx.)", 0.0)
        row = " ".join(f"{each / GIGA:{max(9, len(name))}.4g}" for name, each in zip(names, held.values(), strict=True))
        sends = answer["elements_moved"][stage]
        yield f"{stage:<5} {fixed / asked.parameters:11.6g} {row} {total / GIGA:7.4g} {sends:11.4f}"
    if asked.transformer:
        yield "activations: the published formula for 16 bits, an approximation"
    for stage, volumes in enumerate(answer["volumes"]):
        told = "; ".join(f"{each['calls']} {each['collective']}, {each['bytes'] / GIGA:.4g} GB" for each in volumes)
        yield f"  stage {stage} sends {told}"
    line = answer["step"]
    yield "\nOne micro-batch at stage 0, in ms"
    yield (
        f"forward {1000 * line['forward']:.4g}, backward {1000 * line['backward']:.4g}, optimizer "
        f"{1000 * line['optimizer']:.4g}, step {1000 * line['step']:.4g}"
    )
    yield (
        f"{len(line['buckets'])} buckets; exposed {1000 * line['exposed']:.4g}; overlap {100 * line['overlap']:.1f} %; "
        f"efficiency {100 * line['efficiency']:.1f} %"
    )
    busy = sum(arrived - start for _, _, start, arrived in line["buckets"])
    bound = line["forward"] + max(line["backward"], busy) + line["optimizer"]
    yield f"forward + max(backward, communication) + optimizer, {1000 * bound:.4g}, is only a lower bound"
    yield from _timeline(line, width)
    yield "\nBucket cap against the time of a step"
    shown = sorted({*(cap for cap in CAPS if cap in answer["sweep"]), answer["cap"], answer["best_cap"]})
    longest = max(answer["sweep"][cap] for cap in shown)
    for cap in shown:
        seconds = answer["sweep"][cap]
        bar = "#" * max(1, round(seconds / longest * (width - 40)))
        marks = [
            word for word, is_it in (("yours", cap == answer["cap"]), ("best", cap == answer["best_cap"])) if is_it
        ]
        yield f"{cap / 2**20:9.4g} MiB {1000 * seconds:10.4g} ms  {bar} {', '.join(marks)}".rstrip()
    yield f"yours takes {100 * answer['cap_costs']:.2f} % longer than the best one"
    yield "\nScaling efficiency"
    yield "  ".join(f"{ranks}: {100 * each:.1f} %" for ranks, each in answer["scaling"].items())
    yield "\nAll-reduce of all gradients, in ms"
    yield "  ".join(f"{how}: {1000 * seconds:.4g}" for how, seconds in answer["all_reduce"].items())
    yield "\nStage 3 with layers gathered ahead of their use, in ms"
    for depth, told in answer["prefetch"].items():
        yield f"{depth} ahead: step {1000 * told['step']:.4g}, of which {1000 * told['exposed']:.4g} wait"
    yield "\nTimes are those of a model: alpha + S/B for a message, rings, one channel."


def _timeline(line: dict[str, Any], width: int) -> Iterator[str]:
    """Two lanes: computing, and buckets under way."""
    columns, end = width - 11, line["step"]

    def at(seconds: float) -> int:
        return min(columns, int(seconds / end * columns + 0.5))

    begin, stop = at(line["forward"]), at(line["forward"] + line["backward"])
    last = at(end - line["optimizer"])
    yield f"{'computes':11}{'F' * begin}{'B' * (stop - begin)}{'.' * (last - stop)}{'O' * (columns - last)}"
    lane = [" "] * columns
    for number, (_, _, start, arrived) in enumerate(line["buckets"]):
        first = min(columns - 1, at(line["forward"] + start))
        for column in range(first, max(first + 1, at(line["forward"] + arrived))):
            lane[min(column, columns - 1)] = "ab"[number % 2]
    yield f"{'buckets':11}{''.join(lane)}".rstrip()
    yield "F forward  B backward  O optimizer  . waits  a, b buckets under way, in turn"
