"""The cost of an example on the simulated world, against the same example elsewhere."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from lockstep.benchmarks.contestants import (
    Contestant,
    fresh,
    in_child,
    on_world,
    run_fake,
    run_simulated,
    run_threaded,
    serve,
    standing,
)
from lockstep.oracle.events import Backward, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.trial import job
from lockstep.worlds import process
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.world import SimWorld

IMPLEMENTATIONS = ("lockstep.impls.static_buckets:StaticBuckets", "lockstep.impls.frameworks.torch_ddp:TorchDDP")
ON_FAKE = {IMPLEMENTATIONS[1]: "lockstep.benchmarks.contestants:DDPOnFake"}
WORLD_SIZES = (2, 4, 8)
ROUNDS, FRESH_ROUNDS, WARM_UP = 30, 2, 5
FRESH_SIZE = 2
# Both of a ratio are timed alike: inside a warm process, by the processor's time or the clock, or with the way there.
RATIOS = (("inside", "fake"), ("threaded", "elapsed"), ("gloo", "sim"), ("gloo", "standing"), ("fresh", "sim"))


def scenario(world_size: int) -> Scenario:
    """Three parameters, two steps, one micro-batch accumulated, hooks in two orders: of the size that laws draw."""
    orders = tuple(((0, 1, 2), (2, 0, 1))[rank % 2] for rank in range(world_size))
    first = (Backward(orders, False), Backward(orders), Finish(), Step(), ZeroGrad())
    return Scenario(
        world_size,
        (Parameter((2, 2)), Parameter((3,)), Parameter((1,))),
        (*first, Backward(orders), Finish(), Step()),
    )


@contextmanager
def contestants() -> Iterator[dict[str, Contestant]]:
    """Everything that stays warm, by name. torch.distributed's isolation of threads is for a whole process, so each has
    one of its own.
    """
    sim, gloo = SimWorld(), GlooWorld()
    children = {
        name: process.Child(serve, run)
        for name, run in (("inside", run_simulated), ("fake", run_fake), ("threaded", run_threaded))
    }
    try:
        for child in children.values():
            child.await_start()
        yield {
            "sim": on_world(sim),
            "inside": in_child(children["inside"], "processor"),
            "fake": in_child(children["fake"], "processor"),
            "elapsed": in_child(children["inside"], "wall"),
            "threaded": in_child(children["threaded"], "wall"),
            "gloo": on_world(gloo),
            "standing": standing(gloo),
        }
    finally:
        for each in (sim, gloo):
            each.close()
        for child in children.values():
            child.kill()


def compare(
    implementation: str, world_size: int, warm: Mapping[str, Contestant], rounds_of_each: int = ROUNDS
) -> dict[str, float]:
    """Medians: of the seconds of an example on each contestant, and of the ratios of two that the table shows.

    The contestants take turns, and a ratio is taken within a round, so that what disturbs one disturbs all.
    """
    here = job(implementation, scenario(world_size))
    on_fake = job(ON_FAKE.get(implementation, implementation), scenario(world_size))
    rounds: dict[str, list[float]] = defaultdict(list)
    for number in range(-min(WARM_UP, rounds_of_each), rounds_of_each):
        took = {name: run(on_fake if name == "fake" else here) for name, run in warm.items()}
        if world_size == FRESH_SIZE and 0 <= number < FRESH_ROUNDS:
            took["fresh"] = fresh(here)
        if number >= 0:
            for name, seconds in took.items():
                rounds[name].append(seconds)
            for one, other in RATIOS:
                if one in took:
                    rounds[f"{one}/{other}"].append(took[one] / took[other])
    return {name: median(values) for name, values in rounds.items()}


def lines(rounds: int = ROUNDS, world_sizes: Sequence[int] = WORLD_SIZES) -> Iterator[str]:
    """The table, a line for each implementation and number of ranks."""
    yield f"An example on the simulated world and elsewhere, medians of {rounds} rounds (fresh: {FRESH_ROUNDS}):"
    ratios = [f"{one}/{other}" for one, other in RATIOS]
    yield f"{'':13}ranks       sim    inside" + "".join(f"{ratio:>{len(ratio) + 2}}" for ratio in ratios)
    with contestants() as warm:
        for implementation in IMPLEMENTATIONS:
            for world_size in world_sizes:
                name, found = implementation.rpartition(":")[2], compare(implementation, world_size, warm, rounds)
                line = f"{name:13}{world_size:5}{1000 * found['sim']:7.1f} ms{1000 * found['inside']:7.1f} ms"
                yield line + "".join(f"{found[ratio]:{len(ratio) + 2}.2f}" for ratio in ratios if ratio in found)
    yield "sim: from a job handed over to its reports received, by the clock, like what follows gloo;"
    yield "inside: without that way, in the process of the ranks, by the processor's time; elapsed: by the clock;"
    yield "fake: the same program, rank by rank, without communication, by the processor's time;"
    yield "threaded: torch's own threaded test world, inside its process, by the clock;"
    yield "standing: gloo ranks that run the example again and again by themselves, in one group, without dispatch;"
    yield "gloo: warm processes; fresh: a new process for each rank and example."
