"""What many examples leave behind in the process of the simulated world: `python -m lockstep.worlds.tests.at_length`.

Prints what it holds after each part of the examples, and ends with status 1 where something is left. All run in one
process, which the world would replace every `worlds.process.LIFETIME` examples.
"""

import argparse
import ctypes
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from lockstep.worlds import process
from lockstep.worlds.contract import Asynchrony, Job
from lockstep.worlds.sim.group import SimGroup
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.outcomes import results

PARTS = 8
DRAWN = Asynchrony("drawn", "drawn", (0, 1, 3, 2, 0, 5, 1, 1))
KINDS = [
    Job("lockstep.worlds.tests.programs:all_kinds_of_values", "{}", 2),
    Job("lockstep.worlds.tests.programs:spoil", "null", 2),
    Job("lockstep.worlds.tests.programs:two_buckets_in_opposite_order", "null", 2, asynchrony=DRAWN, timeline=True),
    Job("lockstep.worlds.tests.programs:waiting_across_groups", "null", 2),
    Job("lockstep.worlds.tests.flights:right", "polling_until_it_is_done", 2),
    Job("lockstep.worlds.tests.wrong_flights:wrong", "dropped", 2, asynchrony=DRAWN),
    Job("lockstep.worlds.tests.wrappers:four_wrappers", '"DDP"', 2),
    Job("lockstep.worlds.tests.wrappers:four_wrappers", '"FSDP2"', 2),
]


@dataclass(frozen=True)
class Held:
    """What the process of the world holds. ``known``: groups in torch's own tables, of rank 0 of one more example;
    ``groups`` and ``objects``: those of Python's that are alive, of ours and in all; bytes of ``memory``, and of what C
    and C++ have ``allocated``; those of ``a_tensor`` of one element among them."""

    threads: int
    files: int
    known: int
    groups: int
    objects: int
    memory: int
    allocated: int
    a_tensor: int


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        ("arena_to_hblks", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks_and_fsmblks", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("fordblks_and_keepcost", ctypes.c_size_t * 2),
    ]


def _allocated() -> int:
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Heap
    heap = ask()
    return int(heap.uordblks + heap.hblkhd)


def look(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What rank 0 finds in the process that all share."""
    dist.barrier()
    if rank:
        return {}
    gc.collect()
    alive, state = gc.get_objects(), vars(dist.distributed_c10d._world)
    known = max(len(table) for name, table in state.items() if name.startswith("pg_"))
    groups = sum(isinstance(each, SimGroup) for each in alive)
    here, allocated = Path("/proc/self"), _allocated()
    many = [torch.ones(1) for _ in range(1000)]
    return {
        "allocated": allocated,
        "a_tensor": (_allocated() - allocated) // len(many),
        "known": known,
        "groups": groups,
        "objects": len(alive),
        "threads": len([*(here / "task").iterdir()]),
        "files": len([*(here / "fd").iterdir()]),
        "memory": int((here / "statm").read_text().split()[1]) * 4096,
    }


_kept: list[Any] = []


def leak(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Leaves something behind, as a world with a fault would. Payload: what. (A thread ends the world's process.)"""
    match json.loads(payload):
        case "files":
            _kept.append(open("/dev/null"))  # noqa: SIM115
        case "groups":
            _kept.append(dist.new_group([0, 1]))
        case "objects":
            _kept.append([])
        case "allocated":
            ctypes.CDLL(None).malloc(1 << 10)  # as C++ that forgets it
    return {}


def held_after(examples: int, warm_up: int, kinds: Sequence[Job] = KINDS) -> list[Held]:
    """What is held after a warm-up of so many examples, and then after each of the parts of the others."""
    world = SimWorld(limit=60.0)
    found = []
    with mock.patch.object(process, "LIFETIME", sys.maxsize):
        try:
            for count in (warm_up, *[examples // PARTS] * PARTS):
                for number in range(count):
                    world.run(kinds[number % len(kinds)])
                found.append(Held(**results(world.run(Job("lockstep.worlds.tests.at_length:look", "null", 2)))[0]))
        finally:
            world.close()
    return found


def growth(held: Sequence[Held], examples: int) -> float:
    """Bytes by which an example of the second half makes the heap grow."""
    return (held[-1].allocated - held[PARTS // 2].allocated) / (examples / 2)


def left_behind(held: Sequence[Held], examples: int) -> list[str]:
    """What is counted one by one and grew in every part, as a leak does and what fills a cache does not; and
    ``allocated``, of which allocators keep some, if examples of the second half leave as much as a tensor each."""
    rows = [asdict(each) for each in held]
    counted = ("threads", "files", "known", "groups", "objects")
    left = [name for name in counted if all(before[name] < after[name] for before, after in pairwise(rows))]
    return left + ["allocated"] * (growth(held, examples) >= held[-1].a_tensor)


def main() -> int:
    """Prints what was held, and the growth per example."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.worlds.tests.at_length", description=main.__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="how many (default: %(default)s)")
    asked = parser.parse_args()
    if asked.examples < PARTS:
        parser.error(f"--examples {asked.examples}: at least {PARTS}")
    held = held_after(asked.examples, len(KINDS) * 25)
    print("examples", *asdict(held[0]), sep="\t")
    part = asked.examples // PARTS
    for number, each in enumerate(held):
        print(number * part, *asdict(each).values(), sep="\t")
    print(f"{(held[-1].memory - held[0].memory) / asked.examples:.1f} bytes of memory an example;", end=" ")
    print(f"{growth(held, asked.examples):.1f} allocated by one of the second half")
    left = left_behind(held, asked.examples)
    print(f"left behind: {', '.join(left) or 'nothing'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
