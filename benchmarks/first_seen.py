"""Programs until a fault is first seen: each law judging its own programs alone, or every law what runs for any.

For each fault of a sample both are done in turn, with the same seeds, laws in the order in which they run, in one
process. A program counts whenever ranks run one.
"""

import argparse
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.properties.catalogue import every_fault, plainest_first
from lockstep.properties.implementations import described
from lockstep.properties.law import Law
from lockstep.properties.ranks.description import describe
from lockstep.properties.running.selection import is_held
from lockstep.properties.searching.others import Others
from lockstep.properties.searching.search import search
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job, Outcome
from lockstep.worlds.sim.world import SimWorld


class Counting(SimWorld):
    """The simulated world, which counts what it runs."""

    programs = 0

    def run(self, job: Job) -> Outcome:
        """As ever."""
        self.programs += 1
        return super().run(job)


@dataclass(frozen=True)
class Seen:
    """After how many programs a fault was seen, and by which law; empty: by none."""

    programs: int
    law: str


def first_seen(fault: str, world: Counting, examples: int, seed: int, together: bool) -> Seen:
    """The number of the program on which a check first sees a fault. ``together``: every law judges what runs for any,
    and draws its share alone.
    """
    implementation, begun = described(fault, describe(fault)), world.programs
    laws = [law for law in plainest_first() if is_held(law, implementation, "sim", probed=False)]
    others = Others(list(laws), whole=True) if together else Others()
    for law in laws:
        own = others.examples(law, examples)
        found = search(others.join(law), Trial(implementation, world), own, seed, shrink=False)
        if found.failures:
            return Seen(world.programs - begun, found.failures[0].broken.law or law.name)
    return Seen(world.programs - begun, "")


def is_plainer_or_named(law: str, fault: str) -> bool:
    """True if a law is one that the fault names, or comes before one."""
    order: list[Law] = list(plainest_first())
    place = {each.name: number for number, each in enumerate(order)}
    return law != "" and place[law] <= max(place[named] for named in every_fault()[fault].killed_by if named in place)


def lines(count: int, examples: int, seed: int) -> Iterator[str]:
    """The figures of a sample of so many faults, as they come, and then over all of them."""
    of_programs = sorted(name for name in every_fault() if ":" in name and "kernels" not in name)
    world, alone, together = Counting(), list[int](), list[int]()
    yield f"{'programs until first seen':58} alone together  seen by"
    for fault in random.Random(seed).sample(of_programs, count):
        one, other = (first_seen(fault, world, examples, seed, both) for both in (False, True))
        alone, together = [*alone, one.programs], [*together, other.programs]
        named = "" if is_plainer_or_named(other.law, fault) else " (neither named nor plainer)"
        yield f"{fault.removeprefix('lockstep.impls.')[:58]:58} {one.programs:5} {other.programs:8}  {other.law}{named}"
    world.close()
    for name, of in (
        ("median", statistics.median),
        ("95th percentile", lambda each: sorted(each)[len(each) * 95 // 100]),
    ):
        yield f"{name:58} {of(alone):5} {of(together):8}"
    yield f"seen within ten programs already, alone: {sum(each <= 10 for each in alone)} of {count}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m lockstep.benchmarks.first_seen", description=__doc__)
    parser.add_argument("--faults", type=int, default=40, help="how many of the faults that ship (%(default)s)")
    parser.add_argument("--examples", type=int, default=100, help="programs for each law (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the programs (%(default)s)")
    asked = parser.parse_args()
    for line in lines(asked.faults, asked.examples, asked.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
