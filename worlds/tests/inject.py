"""Many examples on gloo, some of them with a fault: `python -m lockstep.worlds.tests.inject --examples 10000`.

Ends with status 1 if a fault is not told as what it was, if a sound example fails, if one takes longer than its limit
allows, or if a process is left.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from unittest import mock

from lockstep.worlds import pool, process
from lockstep.worlds.contract import Job
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.process_tree import name_of
from lockstep.worlds.tests.faults import FAULTS, complaints
from lockstep.worlds.tests.outcomes import gone
from lockstep.worlds.tests.users import marked

SIZES = (1, 2, 3, 4)
LIMIT = 1.0  # seconds for an example with a fault, once the pool is up
PATIENCE = 0.3
MARK = "LOCKSTEP_INJECTION"


@dataclass
class Tally:
    """What was seen: how often each fault was injected, what was wrong, and how long examples took, in seconds."""

    injected: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    sound: list[float] = field(default_factory=list)
    faulty: list[float] = field(default_factory=list)


def inject(examples: int, every: int, seed: int) -> Tally:
    """Runs so many examples, each of ``every`` with a fault drawn from all, on a rank and a world size drawn too."""
    draw, tally, names = random.Random(seed), Tally(), sorted(FAULTS)
    world = GlooWorld(memory=1 << 30)
    pids: set[int] = set()
    with mock.patch.object(pool, "PATIENCE", PATIENCE):
        try:
            world.run(Job("lockstep.worlds.tests.faults:with_a_fault", "null", max(SIZES)))  # torch is imported, twice
            for number in range(examples):
                size = draw.choice(SIZES)
                name = names[(number // every) % len(names)] if number % every == every // 2 else None
                if name in ("disagrees", "hangs in a collective"):  # it takes two
                    size = max(2, size)
                culprit = draw.randrange(size)
                payload = json.dumps({"fault": name, "rank": culprit} if name else None)
                # Filling memory ends by itself, at its own limit, and takes as long as it takes.
                limit = 60 * LIMIT if name == "allocates without bound" else LIMIT
                job = Job("lockstep.worlds.tests.faults:with_a_fault", payload, size, limit=limit if name else None)
                begun = time.monotonic()
                outcome = world.run(job)
                (tally.faulty if name else tally.sound).append(time.monotonic() - begun)
                pids |= {int(report.result["pid"]) for report in outcome if report.result is not None}
                tally.complaints += [f"example {number}: {each}" for each in complaints(outcome, name, culprit)]
                tally.injected[name or "none"] += 1
        finally:
            world.close()
    if not gone(pids):
        tally.complaints.append("a rank's process is left")
    helpers = {resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    helpers |= {server._forkserver_pid for server in process._SERVERS}
    if left := set(marked(f"{MARK}={os.environ[MARK]}")) - helpers:
        tally.complaints.append(f"left: {', '.join(map(name_of, left))}")
    if worst := [took for took in (*tally.sound, *tally.faulty) if took > 20]:
        tally.complaints.append(f"examples took {', '.join(f'{took:.0f} s' for took in worst)}")
    return tally


def main() -> int:
    """Runs examples on gloo, some with a fault, and prints the figures and what was wrong."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.worlds.tests.inject", description=main.__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--every", type=int, default=50, help="a fault in one of so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: %(default)s)")
    asked = parser.parse_args()
    os.environ[MARK] = str(os.getpid())  # before the fork server starts: whatever comes of it bears this
    begun = time.monotonic()
    tally = inject(asked.examples, asked.every, asked.seed)
    sound, faulty = sorted(tally.sound), sorted(tally.faulty)
    faults = sum(tally.injected.values()) - tally.injected["none"]
    print(
        f"{asked.examples} examples on gloo, {faults} with a fault, seed {asked.seed}: {time.monotonic() - begun:.0f} s"
    )
    for name in sorted(FAULTS):
        print(f"  {tally.injected[name]:5}  {name}")
    print(f"a sound example: median {1000 * sound[len(sound) // 2]:.1f} ms, longest {sound[-1]:.1f} s")
    print(f"a faulty example: median {faulty[len(faulty) // 2]:.1f} s, longest {faulty[-1]:.1f} s")
    print(f"{len(tally.complaints)} complaints")
    for complaint in tally.complaints:
        print(f"  {complaint}")
    return 1 if tally.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
