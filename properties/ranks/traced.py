"""Moments of a program on a rank, on the clock of the world's timeline."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from lockstep.oracle.events import Event
from lockstep.properties.ranks.program import run_program
from lockstep.properties.ranks.rank import Rank
from lockstep.properties.seen import Seen


class Traced(Rank):
    """A rank that notes its moments.

    ``traced``: (kind, event's place, number, time) in order. Kinds: "begin" and "end" of an event; "forward" and
    "computed", the beginning and the end of the forward of the numbered unit, -1: of the whole model; "gradient": that
    of the numbered parameter is final.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen["traced"] = []

    def construct(self) -> None:
        """Hooks registered here come closer to the forward than those of the implementation."""
        super().construct()
        numbers = map(self.scenario.unit, range(len(self.scenario.parameters)))
        units = {home: unit for home, unit in zip(self.probe.homes, numbers, strict=True) if unit is not None}
        for module, unit in {self.probe: -1, **units}.items():
            module.register_forward_pre_hook(lambda *_, unit=unit: self.mark("forward", unit))
            module.register_forward_hook(lambda *_, unit=unit: self.mark("computed", unit), prepend=True)

    def mark(self, kind: str, number: int = -1) -> None:
        """Note that something takes place now."""
        now = getattr(dist.group.WORLD, "now", time.perf_counter_ns)
        self.seen["traced"].append((kind, self.place, number, now()))

    @contextlib.contextmanager
    def during(self, event: Event) -> Iterator[None]:
        """Mark the event alone, without the looks at its results."""
        self.mark("begin")
        yield
        self.mark("end")

    def fired(self, index: int) -> None:
        """Before any hook of the implementation's."""
        super().fired(index)
        self.mark("gradient", index)


def trace_program(payload: str, rank: int, world_size: int) -> Seen:
    """`properties.ranks.program.run_program`, and the moments of it: see `Traced`."""
    return run_program(payload, rank, world_size, Traced)
