"""The handle of a launched collective or message: waiting for it, and when its result is written."""

from _thread import get_ident
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from lockstep.worlds.contract import Collective
from lockstep.worlds.described_group import Tensors
from lockstep.worlds.sim import futures
from lockstep.worlds.sim.meeting import Flat, Meeting, Mismatch

if TYPE_CHECKING:
    from lockstep.worlds.sim.flight import Flight
    from lockstep.worlds.sim.group import SimGroup
    from lockstep.worlds.sim.log import Entry


class SimWork(dist.Work):
    """The handle of a launched collective on one rank, or of a message at one end: its ``part`` in the meeting.

    ``written``: the outputs as they lie in memory.
    """

    def __init__(
        self,
        group: "SimGroup",
        meeting: Meeting,
        part: int,
        outputs: Tensors,
        written: Tensors,
        call: Collective,
        place: int,
    ) -> None:
        super().__init__()
        self._group, self._meeting, self._part, self._outputs, self._written = group, meeting, part, outputs, written
        self._call, self._place = call, place
        self.finished = False  # whether this rank knows that it is over
        self._future: Future | None = None
        self.entry: Entry | None = None  # in the timeline, if there is one

    def __str__(self) -> str:
        return self._call.numbered(self._place)

    @property
    def thread(self) -> int:
        """Of the rank that has launched it."""
        return self._group.thread

    def over(self) -> bool:
        """True if waiting for it would not block."""
        return self._meeting.over

    def is_completed(self) -> bool:
        """True if it is done. If not, other ranks run first, so that polling ends.

        If so, the outputs are written: on a real backend they would be.
        """
        if get_ident() != self._group.thread:
            raise self._group.foreign_thread("polls", self)
        self._look()
        self._complete_future()
        return self.finished

    def _look(self) -> None:
        if not self._meeting.over:
            self._group.run.poll(self._group.global_rank, self)
        if self._meeting.over:
            self._finish(polled=True)

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until the collective is carried out, then writes this rank's outputs."""
        if get_ident() != self._group.thread:
            raise self._group.foreign_thread("waits for", self)
        self._await()
        if self._future is not None:
            self._complete_future()
        return True

    def _await(self) -> None:
        while not self._meeting.over:
            self.block_on([self])
        self._finish()

    def block_on(self, works: Sequence["SimWork"]) -> None:
        """Lets other ranks run until one of these is over; the rank is the same for all."""
        for work in works:
            work._meeting.waiting.append(self._group.global_rank)
        reason = works[0] if len(works) == 1 else " or ".join(map(str, works))
        self._group.run.block(self._group.global_rank, reason)

    def _finish(self, polled: bool = False) -> None:
        """This rank learns that the collective is over."""
        if self._meeting.mismatch:
            raise Mismatch(self._meeting.mismatch)
        if not self.finished:
            self.finished = True
            self._deliver()
            if self.entry is not None:
                self.entry.waited, self.entry.polled = self._group.run.now(), polled

    def _complete_future(self) -> None:
        if self.finished and self._future is not None and futures.close(self):
            self._future.set_result(list(self._outputs))  # what follows it by `then` runs now

    def _deliver(self) -> None:
        results = self._meeting.results
        result = None if results is None else results[self._part]
        if result is not None:
            write(result, self._written)

    def _source_rank(self) -> int:
        """The member that sent what a receive from any rank got: what c10d asks for."""
        if self._meeting.source is None:
            raise RuntimeError(f"{self}: nobody has sent yet; wait for it first")
        return self._meeting.source

    def result(self) -> list[torch.Tensor]:
        """The outputs."""
        self.wait()
        return list(self._outputs)

    def get_future(self) -> Future:
        """A future that is done when this rank knows that the collective is. Asking it in Python makes the rank wait or
        poll.

        C++ consumers (DDP's reducer) ask for it right after the launch, and wait where the baton cannot be passed.
        Inside backward it is done at the end of backward at the latest, by an autograd callback that waits: blocking at
        once would forbid two buckets in flight and invent deadlocks. The callback comes before the reducer's own, which
        is queued later. In a callback at the end of backward, where no node is being evaluated, it blocks: DDP with a
        static graph, and PowerSGD, launch and wait in one. Outside backward no C++ waits.
        """
        if self._future is None:
            self._future = futures.future_of(self)
        if not self.finished and torch._C._current_autograd_node() is not None:
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        elif torch._C._current_graph_task_id() >= 0:
            self.wait()
        self._complete_future()
        return self._future


class WatchedWork(SimWork):
    """The handle of what has a `Flight`: that one's choices decide when the outputs are written."""

    def __init__(
        self,
        group: "SimGroup",
        meeting: Meeting,
        part: int,
        outputs: Tensors,
        written: Tensors,
        call: Collective,
        place: int,
        flight: "Flight",
    ) -> None:
        super().__init__(group, meeting, part, outputs, written, call, place)
        self._flight = flight

    def _look(self) -> None:
        with self._flight.watch.ours():
            super()._look()
            self._flight.watch.moment()

    def _await(self) -> None:
        with self._flight.watch.ours():
            super()._await()
            self._flight.watch.moment()

    def _deliver(self) -> None:
        self._flight.finish()

    def __del__(self) -> None:
        self._flight.drop()


def write(flat: Flat, outputs: Tensors) -> None:
    """Writes a flat result to the tensors that it is for."""
    if len(outputs) == 1:
        _write(flat, outputs[0])
        return
    for output, part in zip(outputs, flat.split_with_sizes([output.numel() for output in outputs]), strict=True):
        _write(part, output)


def _write(flat: Flat, output: torch.Tensor) -> None:
    if output.is_sparse:  # of which .data is another tensor
        with torch.no_grad():
            output.copy_(flat)
        return
    # .data, as a real backend writes: past autograd and its version counter. Buckets are flat.
    output.data.copy_(flat if output.dim() == 1 else flat.view_as(output))
