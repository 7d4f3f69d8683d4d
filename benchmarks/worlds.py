"""What an example costs on the simulated world, against the same example elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

from benchmarks.contestants import Contestant, fresh, in_child, on_world, run_fake, run_threaded, serve, standing
from oracle.program import Backward, Finish, Parameter, Scenario, Step, ZeroGrad
from properties.trial import job
from worlds import process
from worlds.gloo import GlooWorld
from worlds.sim.world import SimWorld

IMPLEMENTATIONS = ("impls.static_buckets:StaticBuckets", "impls.frameworks.torch_ddp:TorchDDP")
ON_FAKE = {IMPLEMENTATIONS[1]: "benchmarks.contestants:DDPOnFake"}
WORLD_SIZES = (2, 4, 8)
ROUNDS, FRESH_ROUNDS, WARM_UP = 20, 2, 3
FRESH_SIZE = 2


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
    fake, threaded = process.Child(serve, run_fake), process.Child(serve, run_threaded)
    try:
        for child in (fake, threaded):
            child.await_start()
        yield {
            "sim": on_world(sim),
            "fake": in_child(fake),
            "threaded": in_child(threaded),
            "gloo": on_world(gloo),
            "standing": standing(gloo),
        }
    finally:
        for each in (sim, gloo):
            each.close()
        for child in (fake, threaded):
            child.kill()


def compare(implementation: str, world_size: int, warm: Mapping[str, Contestant]) -> dict[str, float]:
    """The median seconds of an example on sim; for the others, medians of how many times as long it takes there.

    The contestants take turns, and a ratio is taken within a round, so that what disturbs one disturbs all.
    """
    here = job(implementation, scenario(world_size))
    on_fake = job(ON_FAKE.get(implementation, implementation), scenario(world_size))
    rounds: dict[str, list[float]] = {"sim": [], **{name: [] for name in warm}, "fresh": []}
    for number in range(-WARM_UP, ROUNDS):
        took = {name: run(on_fake if name == "fake" else here) for name, run in warm.items()}
        if world_size == FRESH_SIZE and 0 <= number < FRESH_ROUNDS:
            took["fresh"] = fresh(here)
        if number >= 0:
            for name, seconds in took.items():
                rounds[name].append(seconds if name == "sim" else seconds / took["sim"])
    return {name: median(values) for name, values in rounds.items() if values}


def lines() -> Iterator[str]:
    """The table, a line for each implementation and number of ranks."""
    yield f"An example on the simulated world and elsewhere, medians of {ROUNDS} rounds (fresh: {FRESH_ROUNDS}):"
    yield f"{'':16}ranks       sim   sim/fake  threaded/sim   gloo/sim  gloo/standing  fresh/sim"
    with contestants() as warm:
        for implementation in IMPLEMENTATIONS:
            for world_size in WORLD_SIZES:
                name, found = implementation.rpartition(":")[2], compare(implementation, world_size, warm)
                line = f"{name:16}{world_size:5}{1000 * found['sim']:7.1f} ms{1 / found['fake']:11.2f}"
                line += f"{found['threaded']:14.2f}{found['gloo']:11.2f}"
                line += f"{found['gloo'] / found['standing']:15.2f}"
                yield line + (f"{found['fresh']:11.0f}" if "fresh" in found else "")
    yield "fake: the same program, rank by rank, without communication; threaded: torch's own threaded test world;"
    yield "standing: gloo ranks that run the example again and again by themselves, in one group, without dispatch;"
    yield "gloo: warm processes; fresh: a new process for each rank and example."
