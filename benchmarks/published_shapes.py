"""Holds the right class of every published shape against all laws that concern it: a failure would be a false alarm.

`python -m lockstep.benchmarks.published_shapes --examples 200` prints a line for each shape of docs/shapes.md.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from lockstep.properties.catalogue import plainest_first
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.selection import is_held
from lockstep.properties.running.where import decide
from lockstep.properties.searching.search import search
from lockstep.properties.tests.table_of_shapes import ROWS, Row
from lockstep.properties.trial import ENDED, Trial

OF_A_CLASS = [row for row in ROWS if row.model is None]


def held(world: str, row: Row, examples: int) -> tuple[int, int, list[str]]:
    """Laws that concern a row's right class, examples that they showed something on, and the names of those broken.

    ``examples``: the least number over all laws, each of which draws as many.
    """
    bench = Bench([f"{row.module}:{row.names[0]}"], decide([world], None, world == "sim", 1, False))
    try:
        (implementation,) = bench.implementations
        laws = [law for law in plainest_first() if is_held(law, implementation, world, probed=False)]
        shown, broken = 0, []
        for number, law in enumerate(laws):
            trial = replace(Trial(implementation, bench.world(world)), own_state=row.own_state)
            found = search(law, trial, -(-examples // len(laws)), seed_value=number, shrink=False)
            shown += trial.witnessed[ENDED]
            broken += [law.name] * bool(found.failures)
        return len(laws), shown, broken
    finally:
        bench.close()


def lines(world: str, examples: int) -> Iterator[str]:
    """The figures, a line for each shape."""
    for row in OF_A_CLASS:
        laws, shown, broken = held(world, row, examples)
        told = f"broken: {', '.join(broken)}" if broken else "all hold"
        yield f"  {row.shape:70} {laws:4} laws {shown:5} examples on {world}: {told}"


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser("python -m lockstep.benchmarks.published_shapes", description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="of each shape, over all laws (%(default)s)")
    parser.add_argument("--world", choices=("sim", "gloo"), default="sim", help="where to run them (%(default)s)")
    asked = parser.parse_args()
    for line in lines(asked.world, asked.examples):
        print(line, flush=True)


if __name__ == "__main__":
    main()
