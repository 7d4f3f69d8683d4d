"""The times at which a rank runs the parts of a program, on the clock of the world's timeline."""

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
    """A rank that records times.

    ``traced``: (kind, place of the event, number, time) in order. The kinds:

        begin, end          of an event
        forward, computed   the beginning and the end of the forward of the numbered unit; -1 is the whole model
        gradient            the gradient of the numbered parameter is final
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen["traced"] = []

    def construct(self) -> None:
        """Construct, and register hooks that run closer to the forward than those of the implementation."""
        super().construct()
        numbers = map(self.scenario.unit, range(len(self.scenario.parameters)))
        units = {home: unit for home, unit in zip(self.probe.homes, numbers, strict=True) if unit is not None}
        for module, unit in {self.probe: -1, **units}.items():
            module.register_forward_pre_hook(lambda *_, unit=unit: self.mark("forward", unit))
            module.register_forward_hook(lambda *_, unit=unit: self.mark("computed", unit), prepend=True)

    def mark(self, kind: str, number: int = -1) -> None:
        """Record an entry with the present time."""
        now = getattr(dist.group.WORLD, "now", time.perf_counter_ns)
        self.seen["traced"].append((kind, self.place, number, now()))

    @contextlib.contextmanager
    def during(self, event: Event) -> Iterator[None]:
        """Mark the event itself, without the observations after it."""
        self.mark("begin")
        yield
        self.mark("end")

    def fired(self, index: int) -> None:
        """Called before any hook of the implementation."""
        super().fired(index)
        self.mark("gradient", index)


def trace_program(payload: str, rank: int, world_size: int) -> Seen:
    """As `properties.ranks.program.run_program`, with times: see `Traced`."""
    return run_program(payload, rank, world_size, Traced)
