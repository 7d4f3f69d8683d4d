"""The handle of a launched collective: waiting for it, and when its result is written."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from worlds.collectives import Tensors
from worlds.contract import Collective
from worlds.sim.meeting import Flat, Meeting, Mismatch

if TYPE_CHECKING:
    from worlds.sim.group import SimGroup


class SimWork(dist.Work):
    """The handle of a launched collective on one rank."""

    def __init__(self, group: "SimGroup", meeting: Meeting, outputs: Tensors, call: Collective, place: int) -> None:
        super().__init__()
        self._group, self._meeting, self._outputs, self._call, self._place = group, meeting, outputs, call, place
        self._delivered = False

    def __str__(self) -> str:
        return f"{self._call}, collective {self._place + 1} of the {self._group.label} group"

    def is_completed(self) -> bool:
        """Whether all members have arrived."""
        return self._meeting.over

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until the collective is carried out, then writes this rank's outputs."""
        meeting, group = self._meeting, self._group
        while not meeting.over:
            meeting.waiting.append(group.global_rank)
            group.run.block(group.global_rank, self)
        if meeting.mismatch:
            raise Mismatch(meeting.mismatch)
        if not self._delivered:
            self._delivered = True
            assert meeting.results is not None
            result = meeting.results[group.member]
            if result is not None:
                _write(result, self._outputs)
        return True

    def get_future(self) -> Future:
        """C++ consumers (DDP's reducer) ask for it right after the launch.

        Inside backward it stays open until the end of backward, where an autograd callback waits: blocking at once
        would forbid two buckets in flight and invent deadlocks. The callback comes before the reducer's own, which is
        queued later. Outside backward nobody would wait for us, so it blocks; also in such callbacks themselves, when
        no node is at work any more: the first step with a static graph and PowerSGD launch there and wait at once.
        """
        future: Future = Future()

        def complete() -> None:
            self.wait()
            future.set_result(list(self._outputs))

        if torch._C._current_autograd_node() is None:
            complete()
        else:
            torch.autograd.Variable._execution_engine.queue_callback(complete)
        return future


def _write(flat: Flat, outputs: Tensors) -> None:
    parts = [flat] if len(outputs) == 1 else flat.split([output.numel() for output in outputs])
    for output, part in zip(outputs, parts, strict=True):
        # .data, as a real backend writes: past autograd and its version counter.
        output.data.copy_(part.view_as(output))
