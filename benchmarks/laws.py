"""Laws on a GPU: those of kernels, and the central ones on NCCL with several ranks on a GPU and gloo with CUDA tensors.

A world is started once and kept for all laws, and its processes keep a communicator for each group of ranks.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from lockstep.benchmarks.units import NotDone
from lockstep.properties.catalogue import every_law
from lockstep.properties.kernels.ahead import SHIPPED
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import hold
from lockstep.properties.running.selection import is_held
from lockstep.properties.running.session import Record, Session
from lockstep.properties.running.where import decide

CENTRAL = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P10", "P12", "P18")
EXAMPLES = 20
OF_KERNELS = 200
IMPLEMENTATIONS = ("lockstep.impls.static_buckets:StaticBuckets", "lockstep.impls.zero3:Zero3")


@dataclass(frozen=True)
class Place:
    """A world, as the options of pytest choose it."""

    name: str
    device: str | None
    ranks_per_gpu: int
    words: str


PLACES = (
    Place("nccl", None, 2, "nccl, 2 ranks on a GPU"),
    Place("nccl", None, 4, "nccl, 4 ranks on a GPU"),
    Place("gloo", "cuda", 1, "gloo, CUDA tensors"),
)
DRY = (Place("gloo", "cpu", 1, "gloo, CPU tensors"),)


def of_kernels(dry: bool) -> Iterator[tuple[str, Callable[[float], Any]]]:
    """By name, what holds one law of kernels against those that ship."""
    session = Session(SHIPPED, laws="P17", examples=1 if dry else OF_KERNELS, seed=17)
    try:
        for held in session.held(probed=False):
            yield held.law, partial(_ended, held.run)
    finally:
        session.close()


def _ended(run: Callable[[Record], None], left: float) -> str:
    """The verdict of a law, and on how many examples."""
    filed: dict[str, Any] = {}

    def record(name: str, value: Any) -> None:
        filed.update(value)

    try:
        run(record)
    except pytest.fail.Exception as failed:
        return f"FAILED: {failed.msg}"
    except pytest.skip.Exception as skipped:
        return f"{skipped.msg}"
    return f"{filed['verdict']} ({filed.get('examples', 0)})"


def units(dry: bool) -> Iterator[tuple[str, Callable[[float], Any]]]:
    """By name, what holds the laws of one number on one world, and says how each ended."""
    for place in DRY if dry else PLACES:
        kept = Kept(place)
        try:
            for number in CENTRAL[:1] if dry else CENTRAL:
                yield f"{place.words}: {number}", partial(kept.held, number, 1 if dry else EXAMPLES)
        finally:
            kept.close()


class Kept:
    """A world that is started when the first law needs it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._bench: Bench | None = None

    def held(self, number: str, examples: int, left: float) -> dict[str, str]:
        """By law and implementation, the verdict, and on how many examples."""
        name = self._place.name
        if self._bench is None:
            where = decide([name], self._place.device, False, self._place.ranks_per_gpu, False)
            self._bench = Bench(list(IMPLEMENTATIONS), where)
        if fault := self._bench.fault(name):
            return {"the world itself": f"FAILED: {fault}"}
        begun, found = time.monotonic(), dict[str, str]()
        for law in (law for law in every_law().values() if law.number == number):
            for implementation in self._bench.implementations:
                if is_held(law, implementation, name, probed=False):
                    if time.monotonic() - begun > left:
                        raise NotDone(f"{len(found)} laws held in time")
                    trial, budget = self._bench.trial(implementation, name), Budget("0", examples=examples)
                    run = partial(hold, law, trial, budget=budget)
                    found[f"{implementation.short}: {law.name}"] = _ended(run, left)
        return found

    def close(self) -> None:
        """Ends every process."""
        if self._bench is not None:
            self._bench.close()
