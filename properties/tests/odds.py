"""How surely known faults are found: python -m lockstep.properties.tests.odds --seeds 10 --examples 100 --part 1/2

For each law that is to find a fault, so many searches with seeds 1, 2 and so on. Tells the pairs that a seed missed,
and how many searches found theirs.
"""

import argparse

from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.implementations import described
from lockstep.properties.ranks import description
from lockstep.properties.searching.search import search
from lockstep.properties.trial import Trial
from lockstep.worlds.sim.world import SimWorld


def first_found(fault: str, law: str, seeds: int, examples: int) -> list[int | None]:
    """By seed: how many examples that differ it took; None where none of them showed the fault."""
    world = SimWorld()
    try:
        trial = Trial(described(fault, description.describe(fault)), world)
        searches = [search(every_law()[law], trial, examples, seed, shrink=False) for seed in range(1, seeds + 1)]
    finally:
        world.close()
    return [found.examples if found.failures else None for found in searches]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.tests.odds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=100, help="as many are drawn in each search")
    parser.add_argument("--part", default="1/1", help="the first of so many parts of all pairs")
    asked = parser.parse_args()
    part, parts = (int(number) if number.isdigit() else 0 for number in (*asked.part.split("/"), "0")[:2])
    if not 1 <= part <= parts or asked.seeds < 1 or asked.examples < 1:
        parser.error("--part is like 1/2, and --seeds and --examples are at least 1")
    pairs = sorted((fault, law) for fault, known in every_fault().items() for law in known.killed_by)[part - 1 :: parts]
    found = whole = 0
    for fault, law in pairs:
        at = first_found(fault, law, asked.seeds, asked.examples)
        hits = sum(examples is not None for examples in at)
        found, whole = found + hits, whole + (hits == asked.seeds)
        if hits < asked.seeds:
            print(f"{hits:3} of {asked.seeds}  {fault}  {law}  {at}", flush=True)
    print(f"{found} of {len(pairs) * asked.seeds} searches found the fault; {whole} of {len(pairs)} pairs in every one")


if __name__ == "__main__":
    main()
