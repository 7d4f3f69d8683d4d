"""The pictures of docs/learn.md, one step of each implementation as `lockstep run` draws it.

``python -m lockstep.properties.pages.tour`` draws them anew; a test checks that they are up to date.
"""

import argparse
from pathlib import Path

from lockstep.home import HOME
from lockstep.pictures.in_svg import svg
from lockstep.properties.implementations import look_up
from lockstep.properties.tracing import program, trace
from lockstep.properties.tracing.model import CostModel, as_large_as
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld

FOLDER = Path(HOME) / "docs" / "tour"
RANKS = 2
# File name -> the implementation, and the number of micro-batches in a step.
SHOWN: dict[str, tuple[str, int]] = {
    "naive": ("lockstep.impls.naive:NaiveDataParallel", 1),
    "accumulation": ("lockstep.impls.naive:NaiveAccumulation", 3),
    "hook": ("lockstep.impls.hook:HookDataParallel", 1),
    "async-hook": ("lockstep.impls.async_hook:AsyncHookDataParallel", 1),
    "static-buckets": ("lockstep.impls.static_buckets:StaticBuckets", 1),
    "zero1": ("lockstep.impls.zero1:Zero1", 1),
    "zero2": ("lockstep.impls.zero2:Zero2", 1),
    "zero3": ("lockstep.impls.zero3:Zero3", 1),
}


def picture(name: str, world: World) -> str:
    """The picture of that name, as SVG. ``world``: the simulated one."""
    target, micro_batches = SHOWN[name]
    (of,) = look_up([target], world)
    cap = program.usual_cap()
    scenario = program.training(of.claims, program.usual_model(), RANKS, micro_batches, bucket_cap=cap)
    model = CostModel(scale=as_large_as(scenario))
    title = f"{of.short}: one step on {RANKS} ranks"
    return svg(trace.lanes(trace.trace(Trial(of, world), scenario, model), title, model)) + "\n"


def main() -> None:
    """Draw all pictures."""
    argparse.ArgumentParser(prog="python -m lockstep.properties.pages.tour", description=__doc__).parse_args()
    world = SimWorld()
    try:
        for name in SHOWN:
            (FOLDER / f"{name}.svg").write_text(picture(name, world), "utf-8")
    finally:
        world.close()


if __name__ == "__main__":
    main()
