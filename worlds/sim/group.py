"""Collectives between simulated ranks: matched by place in the group's sequence, compared, carried out, delivered.

A collective reads its input when it is launched. It is carried out when the last member arrives, and written to a
rank's output when that rank waits for it: whoever reads earlier, or never waits, does not see the result. Launching
never blocks. Members that disagree on a collective get a `Mismatch` that names both sides.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import current_thread, get_ident
from typing import Any, NoReturn

import torch.distributed as dist

from worlds.collectives import DescribedGroup, Tensors, flatten, to_numpy
from worlds.contract import Collective
from worlds.sim.agreement import check, contiguous, disagreeing
from worlds.sim.meaning import carry_out
from worlds.sim.meeting import Flat, Meeting, Mismatch, Run
from worlds.sim.messages import post
from worlds.sim.work import SimWork
from worlds.together import Together


def foreign_thread(name: str) -> NoReturn:
    """Says that a program has threads of its own that communicate: here a thread is a rank."""
    raise RuntimeError(
        f"thread {name!r}, which a rank has started, uses torch.distributed: not runnable on the simulated world, "
        "where each rank is one thread; gloo runs it"
    )


class SimGroup(DescribedGroup):
    """One rank's handle of a group in the simulated world. ``members``: global ranks, by rank in the group."""

    supports_coalescing = supports_splitting = supports_time_estimate = False  # what c10d asks a backend

    def __init__(self, rank: int, members: tuple[int, ...], label: str, run: Run) -> None:
        super().__init__(rank, members, label)
        self.run, self._thread = run, get_ident()
        self._issued = 0  # collectives so far
        self._coalesced: list[dist.Work] | None = None  # what was launched inside a coalescing manager

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        """What `torch.distributed.get_backend` shows."""
        return "sim"

    def _get_backend(self, device: Any) -> Any:
        return self  # there is nothing behind it

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> dist.Work:
        works, self._coalesced = self._coalesced, None
        return Together(works or [])

    def exchange(self, call: Collective, tensors: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Posts a send or a receive. Never blocks."""
        (tensor,) = tensors
        contiguous(call, tensor)
        if get_ident() != self._thread:
            foreign_thread(current_thread().name)
        run = self.run
        sent = to_numpy(flatten(tensors)) if run.contents and call.operation == "send" else None
        run.timeline[self.global_rank].append(call if sent is None else replace(call, sent=sent))
        message = post(self, call, tensor)
        if self._coalesced is not None:
            self._coalesced.append(message)
        return message

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Joins the members that have called it already; the last one carries it out. Raises Mismatch."""
        if get_ident() != self._thread:
            foreign_thread(current_thread().name)
        check(call, inputs, outputs, self.member, len(self.members))
        run, place = self.run, self._issued
        self._issued += 1
        flat = flatten(inputs)
        run.timeline[self.global_rank].append(replace(call, sent=to_numpy(flat)) if run.contents else call)
        meeting = run.meetings.setdefault((self.label, place), Meeting())
        self._join(meeting, place, call, flat)
        work = SimWork(self, meeting, outputs, call, place)
        if run.at_once:
            work.wait()
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _join(self, meeting: Meeting, place: int, call: Collective, flat: Flat) -> None:
        if meeting.calls and not meeting.mismatch:
            other = disagreeing(meeting.calls, self.member, call)
            if other is not None:
                calls = sorted({other: meeting.calls[other], self.member: call}.items())
                meeting.mismatch = f"ranks disagree on collective {place + 1} of the {self.label} group: " + ", ".join(
                    f"rank {self.members[member]} calls {said}" for member, said in calls
                )
        meeting.calls[self.member], meeting.inputs[self.member] = call, flat
        if len(meeting.calls) == len(self.members) and not meeting.mismatch:
            ranks = range(len(self.members))
            inputs = [meeting.inputs[rank] for rank in ranks]
            meeting.results = carry_out([meeting.calls[rank] for rank in ranks], inputs, self.members)
        if meeting.over:
            self.run.baton.wake(meeting.waiting)
            meeting.waiting = []
        if meeting.mismatch:
            raise Mismatch(meeting.mismatch)
