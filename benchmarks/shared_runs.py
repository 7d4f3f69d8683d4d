"""The time of a check that finds nothing: each law judging its own programs alone, or every law what runs for any.

The laws that a class claims are held on simulated ranks in this process, each in both ways in turn, with the same
seeds. Seconds are the processor's. Claims that are neither made nor declined are not tried.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.properties.catalogue import plainest_first
from lockstep.properties.law import Law, sentence
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.selection import is_held
from lockstep.properties.running.where import decide
from lockstep.properties.searching.others import Others
from lockstep.properties.searching.search import search
from lockstep.properties.trial import Trial


@dataclass(frozen=True)
class Held:
    """One law: processor seconds, and runs that it judged, ``alone`` and ``together`` (seconds, runs)."""

    law: Law
    alone: tuple[float, int]
    together: tuple[float, int]


def held(name: str, examples: int, seed: int) -> list[Held]:
    """Every law that a class claims, in the order in which they run. Raises RuntimeError if one does not hold."""
    bench = Bench([name], decide(["sim"], None, True, 1, False))
    try:
        (implementation,) = bench.implementations
        trial = Trial(implementation, bench.world("sim"))
        laws = [law for law in plainest_first() if is_held(law, implementation, "sim", probed=False)]
        others = Others(list(laws), whole=True)
        search(laws[0], trial, 5, seed)  # which imports what is needed
        found = []
        for law in laws:
            alone = _held(law, trial, examples, seed)
            together = _held(others.join(law), trial, others.examples(law, examples), seed)
            found.append((law, alone, together))
            print(f"{len(found)} of {len(laws)} laws", file=sys.stderr, flush=True)
        # Only now is it known what was shown by laws that come later.
        return [Held(law, one, (other[0], other[1] + others.shown[sentence(law)])) for law, one, other in found]
    finally:
        bench.close()


def _held(law: Law, trial: Trial, examples: int, seed: int) -> tuple[float, int]:
    since = time.process_time()
    found = search(law, trial, examples, seed)
    if found.failures:
        raise RuntimeError(f"{trial.implementation.name} breaks {sentence(law)}: {found.failures[0].broken}")
    return time.process_time() - since, found.examples


def lines(found: list[Held]) -> Iterator[str]:
    """A line for each law, and one for all of them."""
    yield f"{'':66} alone         together"
    yield f"{'':66} seconds runs  seconds  runs"
    for each in found:
        yield f"{each.law.number:4}{sentence(each.law)[:60]:62} {_told(each.alone)} {_told(each.together)}"
    seconds = [sum(getattr(each, way)[0] for each in found) for way in ("alone", "together")]
    least = min(found, key=lambda each: each.together[1] / max(each.alone[1], 1))
    yield f"{len(found)} laws: {seconds[0]:.1f} s alone, {seconds[1]:.1f} s together: {seconds[1] / seconds[0]:.2f}"
    yield f"fewest runs of those alone: {least.together[1]} of {least.alone[1]}, {sentence(least.law)}"


def _told(seconds_and_runs: tuple[float, int]) -> str:
    return f"{seconds_and_runs[0]:7.2f} {seconds_and_runs[1]:5}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m lockstep.benchmarks.shared_runs", description=__doc__)
    parser.add_argument("target", help="a class on which every law holds, as MODULE:NAME")
    parser.add_argument("--examples", type=int, default=100, help="programs for each law (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (%(default)s)")
    asked = parser.parse_args()
    print("\n".join(lines(held(asked.target, asked.examples, asked.seed))))


if __name__ == "__main__":
    main()
