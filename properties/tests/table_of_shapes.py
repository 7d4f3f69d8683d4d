"""Writes docs/shapes.md: of each shape of published code, what is found of a right class and of two wrong ones.

`python -m lockstep.properties.tests.table_of_shapes`, from the clone.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.home import HOME
from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import look_up
from lockstep.properties.models.on_yours import YourModel
from lockstep.properties.searching.search import search
from lockstep.properties.trial import ENDED, Trial
from lockstep.worlds.contract import World

PAGE = Path(HOME) / "docs" / "shapes.md"
EXAMPLES = 10
PROBES = "test_gradients_equal_the_mean_over_ranks"
STEPS = "test_every_step_leaves_the_parameters_and_state_of_one_process"
MODELS = "test_a_real_model_gets_the_mean_gradient_of_the_whole_batch"
HEAD = """# Shapes of published code

Each row is a shape in which people publish data parallelism. *lines*: the lines of adapter that Lockstep needs for it.
The other columns are the verdicts of a law on the mean, or on steps, for three classes of that shape: a correct one,
one that never divides, and one that misses a part. The classes are in `properties/tests/shapes.py`.
`python -m lockstep.properties.tests.table_of_shapes` writes this page, and a test checks it.

| shape | lines | right | never divides | misses a part |
| --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """A shape in words; a right class and two wrong ones, by their names in ``module``; lines of adapter that it takes.

    ``law``: on gradients or on steps of probes, or on real models. ``own_state``: ranks have globals of their own.
    ``model``: a user's own.
    """

    shape: str
    names: tuple[str, str, str]
    module: str = "lockstep.properties.tests.shapes"
    lines: int = 0
    law: str = PROBES
    own_state: bool = False
    model: YourModel | None = None


def of(name: str) -> tuple[str, str, str]:
    """The names of a class and of its wrong forms."""
    return name, f"{name}Sums", f"{name}Misses"


def of_a_function(name: str, kind: str) -> tuple[str, str, str]:
    """The same of functions that are called after backward."""
    return name, f"{kind}ThatSums.{name}", f"{kind}ThatMisses.{name}"


MINE = "lockstep.properties.tests.own_models"
ROWS = (
    Row("a forward that takes one argument", of("OneArgument")),
    Row("one claim is declined", of("OneClaim")),
    Row("a pair `on_before_backward` and `on_after_backward(model, optimizer)`", of("Pair")),
    Row("`reduce_gradients()`", of("ReduceGradients")),
    Row("`sync()`", of("Sync")),
    Row("`allreduce_grads()`", of("AllReduceGrads")),
    Row("`finish()`", of("Finish")),
    Row("a function of the model, called after backward", of_a_function("average_gradients", "OfTheModel")),
    Row("a function of the parameters, called after backward", of_a_function("sync_grads", "OfParameters")),
    Row(
        "FSDP of plain layers alone, `gather_full_params()`",
        ("ShardsLayers", "ShardsLayersThatSum", "ShardsLayersOfRankZero"),
    ),
    Row(
        "FSDP of plain layers alone, and no method gathers",
        ("ShardsLayersUndeclared", "ShardsLayersThatSum", "ShardsLayersOfRankZero"),
        law=MODELS,
    ),
    Row("a sharded optimizer `Sharded(params, optimizer_cls)`", of("Sharded"), law=STEPS),
    Row("the same, whose step averages gradients", of("Averaging"), law=STEPS),
    Row(
        "bookkeeping in a class attribute",
        ("Bookkeeping", "BookkeepingThatSums", "BookkeepingThatMisses"),
        "lockstep.properties.tests.shared_state",
        own_state=True,
    ),
    Row(
        "a user's own model, `--model`",
        ("Whole", "WholeThatSums", "Forgets"),
        MINE,
        law=MODELS,
        model=YourModel(f"{MINE}:make", has_buffers=True),
    ),
)


def verdict(world: World, row: Row, name: str) -> str:
    """How the law ends for a class of a row."""
    (implementation,) = look_up([f"{row.module}:{name}"], world)
    law = every_law()[row.law]
    trial = replace(Trial(implementation, world), own_state=row.own_state)
    found = search(law if row.model is None else row.model.on(law), trial, EXAMPLES, seed_value=0, shrink=False)
    if found.failures:
        return found.failures[0].broken.verdict
    return "holds" if trial.witnessed[ENDED] else "shows nothing"


def line(world: World, row: Row) -> str:
    """A row of the table."""
    told = [row.shape, str(row.lines), *(verdict(world, row, name) for name in row.names)]
    return f"| {' | '.join(told)} |\n"


def main() -> None:
    """Writes the page."""
    from lockstep.worlds.sim.world import SimWorld

    prog = "python -m lockstep.properties.tests.table_of_shapes"
    argparse.ArgumentParser(prog=prog, description=main.__doc__).parse_args()
    world = SimWorld()
    try:
        text = HEAD + "".join(line(world, row) for row in ROWS)
    finally:
        world.close()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
