"""`lockstep run`: one step of an implementation, shown rank by rank; or several implementations side by side."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from lockstep.pictures import in_svg, in_text, pages, perfetto
from lockstep.pictures.lanes import Lanes
from lockstep.properties.implementations import Implementation, Unusable, look_up, try_out
from lockstep.properties.naming import model_words
from lockstep.properties.running.import_path import look_here_first
from lockstep.properties.strategies.within import beyond
from lockstep.properties.tracing import clocked, comparison, program, trace
from lockstep.properties.tracing.model import CostModel, as_large_as
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused
from lockstep.worlds.contract import World, to_blame
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.world import SimWorld

LIMIT = 300.0  # seconds for one program, which is nobody's law
WIDEST = 160  # columns
# By the family of laws, the targets that train no model of Lockstep's.
_KINDS = {
    "P14": "a set of collectives",
    "P17": "a set of kernels",
    "P19": "a training loop",
    "P20": "a sampler or a data loader",
    "P21": "a wrapper of experts",
}


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print what ranks do, and write it where that is asked for. Raises SystemExit with the exit code."""
    _add_to(parser)
    asked = parser.parse_args(arguments)
    if not (asked.target or asked.compare):
        parser.error("name a TARGET, for example `lockstep run my_ddp:MyDDP` or `my_ddp.py:MyDDP`; or add --compare")
    if len(asked.target) > 1 and not asked.compare:
        parser.error(f"{len(asked.target)} targets: give one, or add --compare")
    for name in ("ranks", "micro_batches", "scale", "backward", "bandwidth"):
        if (value := getattr(asked, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value}: give more than 0")
    if asked.latency < 0:
        parser.error(f"--latency {asked.latency}: give 0 or more")
    look_here_first(Path.cwd())
    sim, gloo = SimWorld(LIMIT), GlooWorld(LIMIT)
    try:
        found = look_up(asked.target or comparison.COMPARED, sim)
        if asked.target:
            _check_that_they_train(found, sim)
        raise SystemExit(_compared(asked, found, sim, gloo) if asked.compare else _shown(asked, found[0], sim, gloo))
    except (Unusable, ValueError) as error:
        parser.error(str(error))
    finally:
        sim.close()
        gloo.close()


def _add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.usage = "lockstep run TARGET [options]   or   lockstep run --compare [TARGET ...]"
    add = parser.add_argument
    add("target", nargs="*", metavar="TARGET", help="package.module:Name or path/to/file.py:Name")
    add("--compare", action="store_true", help="compare targets in a table (default: seven standard ones)")
    add("--world", choices=("sim", "gloo"), help="sim: modelled times (default); gloo: measured; --compare: both")
    add("--ranks", metavar="N", type=int, default=2, help="world size (default: 2)")
    add("--micro-batches", metavar="N", type=int, default=1, help="per step (default: 1)")
    add("--bucket-cap", metavar="BYTES", type=int, help="largest bucket (default: half of the model)")
    add("--scenario", metavar="TEXT", help="show the last step of this program: Scenario(...) from a report")
    add("--backward", metavar="GB/S", type=float, default=7, help="speed of making gradients (default: 7)")
    add("--latency", metavar="US", type=float, default=20, help="of one message, in microseconds (default: 20)")
    add("--bandwidth", metavar="GB/S", type=float, default=10, help="bandwidth of one rank (default: 10)")
    add("--scale", metavar="N", type=int, help="count each byte of the small model as N (default: 64 MiB in all)")
    add("--svg", metavar="FILE", help="write the picture as SVG")
    add("--html", metavar="FILE", help="write a page with the picture and a table of events")
    add("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev or chrome://tracing")


def _check_that_they_train(found: Sequence[Implementation], sim: World) -> None:
    """Raises Unusable for a target that trains no model, or that cannot be constructed or called."""
    for each in found:
        if kind := _KINDS.get(each.claims.family):
            raise Unusable(
                f"{each.name} is {kind}: `lockstep run` needs a class that wraps a model or an optimizer; "
                "`lockstep check` judges this one"
            )
    try_out(found, sim)


def _model(asked: argparse.Namespace, scale: int) -> CostModel:
    rates = [Fraction(each) * 10**9 for each in (asked.backward, asked.bandwidth)]
    return CostModel(rates[0], Fraction(asked.latency) / 10**6, rates[1], asked.scale or scale)


def _shown(asked: argparse.Namespace, of: Implementation, sim: World, gloo: World) -> int:
    if asked.scenario:
        scenario = program.read(asked.scenario)
        if unclaimed := beyond(of.claims, scenario):
            raise ValueError(f"{of.name} does not claim what the scenario asks for: {unclaimed}")
    else:
        shapes = program.usual_model()
        cap = program.usual_cap() if asked.bucket_cap is None else asked.bucket_cap
        scenario = program.training(of.claims, shapes, asked.ranks, asked.micro_batches, bucket_cap=cap)
    title = f"{of.short}: one step on {scenario.world_size} rank{'s' if scenario.world_size > 1 else ''}"
    model = _model(asked, as_large_as(scenario))
    try:
        if asked.world == "gloo":
            shown = clocked.lanes(scenario, clocked.clocked(Trial(of, gloo), scenario), title)
        else:
            shown = trace.lanes(trace.trace(Trial(of, sim), scenario, model), title, model)
    except (LawBroken, Refused) as ended:
        print(_no_end(of, ended))
        return 1
    shown = replace(shown, model=f"Model: {model_words(scenario)}")
    _written(asked, shown)
    print("\n".join(in_text.drawn(shown, min(WIDEST, shutil.get_terminal_size().columns))))
    return 0


def _no_end(of: Implementation, ended: LawBroken | Refused) -> str:
    how = ended.verdict if isinstance(ended, LawBroken) else "refuses"
    errors = [f"  rank {rank}: {error.message}" for rank, error in to_blame(ended.outcome).items()]
    return "\n".join([f"{of.short} did not come to the end of the program: {how}", *errors])


def _written(asked: argparse.Namespace, shown: Lanes) -> None:
    made = {"svg": in_svg.svg, "html": in_svg.page, "trace": perfetto.trace}
    for name, write in made.items():
        if file := getattr(asked, name):
            Path(file).write_text(write(shown), "utf-8")


def _compared(asked: argparse.Namespace, found: Sequence[Implementation], sim: World, gloo: World) -> int:
    model = _model(asked, comparison.SCALE)
    clock = None if asked.world == "sim" else gloo
    rows = []
    _progress(0, len(found))
    for row in comparison.compare(found, asked.ranks, model, sim, clock):
        rows.append(row)
        _progress(len(rows), len(found))
    print("\n".join(comparison.told(rows, asked.ranks, model)))
    if asked.html:
        how = {"told": comparison.words(rows, asked.ranks, model), "clocked": comparison.are_clocked(rows)}
        page = pages.filled("comparison.html.j2", rows=rows, **how)
        Path(asked.html).write_text(page, "utf-8")
    return int(any(row.on_sim is None for row in rows))


def _progress(done: int, of: int) -> None:
    """Keeps one line of progress on a terminal, and takes it away at the end."""
    if sys.stderr.isatty():
        words = f"{done} of {of} ..."
        print(f"\r{words if done < of else ' ' * len(words)}\r", end="", file=sys.stderr, flush=True)
