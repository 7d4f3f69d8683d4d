"""Collectives between simulated ranks: matched by place in the group's sequence, compared, carried out, delivered.

A collective reads its input when it is launched. It is carried out when the last member arrives. It writes a rank's
output when that rank waits for it: code that reads earlier, or never waits, does not see the result. A job's
`Asynchrony` chooses other moments. Launching never blocks. Members that disagree on a collective get a `Mismatch` that
names both sides. Sends and receives find each other by the rules of `worlds.sim.messages`.
"""

import contextlib
from _thread import get_ident
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.coalesced import Together
from lockstep.worlds.contract import Collective, RankError
from lockstep.worlds.described_group import DescribedGroup, Tensors, as_it_lies, check_contiguous, flatten, in_numpy
from lockstep.worlds.sim.agreement import check, check_tensor, disagreeing
from lockstep.worlds.sim.flight import Flight
from lockstep.worlds.sim.log import Entry
from lockstep.worlds.sim.meaning import carry_out
from lockstep.worlds.sim.meeting import Flat, Meeting, NotRunnable, Run
from lockstep.worlds.sim.messages import end, join, meeting_of
from lockstep.worlds.sim.work import SimWork, WatchedWork

_UNWATCHED = contextlib.nullcontext()


@cache
def _nothing() -> Any:
    """The backend for C++ code that asks a group for it. It refuses every collective that would bypass the simulation.

    DDP's reducer asks whenever it makes buckets, and where there is none pays for an exception.
    """
    backend: Any = torch._C._distributed_c10d.FakeProcessGroup
    options = backend.Options()
    options.error_on_collective = True
    return backend._create_internal(0, 1, options)


class SimGroup(DescribedGroup):
    """One rank's handle of a group in the simulated world. ``members``: global ranks, by rank in the group."""

    supports_coalescing = supports_splitting = supports_time_estimate = False  # what c10d asks a backend

    def __init__(self, rank: int, members: tuple[int, ...], label: str, run: Run) -> None:
        super().__init__(rank, members, label)
        self.run, self.thread = run, get_ident()
        self._register_backend(torch.device("cpu"), self.BackendType.UNDEFINED, _nothing())
        self._posted = 0  # messages so far
        self._coalesced: list[dist.Work] | None = None  # what was launched inside a coalescing manager

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        """The name that `torch.distributed.get_backend` shows."""
        return "sim"

    def recorded(self) -> int:
        """See `DescribedGroup`."""
        return len(self.run.collectives[self.global_rank])

    def now(self) -> int:
        """See `DescribedGroup`. Asking counts, so that no two moments are the same."""
        return self.run.now()

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
        check_contiguous(call, tensor)
        if get_ident() != self.thread:
            raise self.foreign_thread("posts", call)
        with self._ours():
            return self._exchange(call, tensors)

    def _exchange(self, call: Collective, tensors: Tensors) -> dist.Work:
        run, sends = self.run, call.operation == "send"
        self._posted += 1
        run.baton.fruitless = 0
        memory = (tensors, []) if sends else ([], tensors)
        flat = flatten(memory[0])
        sent = in_numpy(flat) if run.job.contents and sends else None
        run.collectives[self.global_rank].append(call if sent is None else replace(call, sent=sent))
        meeting = meeting_of(self, call)
        work = self._work(meeting, end(call), self._posted, call, tensors, memory, flat)
        join(self, meeting, call, flat)
        return self._launched(work)

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Joins the members that have called it already; the last one carries it out. Raises Mismatch."""
        if get_ident() != self.thread:
            raise self.foreign_thread("launches", call)
        for tensor in inputs if outputs is inputs else (*inputs, *outputs):
            if tensor.layout is not torch.strided and not (tensor.is_sparse and call.operation == "all_reduce"):
                reason = f"the simulated world has no {call.operation} of {tensor.layout} tensors"
                raise self.run.refuse(RankError("not runnable", f"rank {self.global_rank} launches {call}: {reason}"))
            check_tensor(call, tensor)
        check(call, inputs, outputs, self.member, len(self.members))
        with self._ours():
            return self._launch(call, inputs, outputs)

    def _ours(self) -> contextlib.AbstractContextManager[None]:
        watches = self.run.watches
        return _UNWATCHED if watches is None else watches[self.global_rank].ours()

    def _launch(self, call: Collective, inputs: Tensors, outputs: Tensors) -> dist.Work:
        given = as_it_lies(call, inputs)
        memory = given, given if outputs is inputs else as_it_lies(call, outputs)
        run, place = self.run, self.issued
        self.issued += 1
        run.baton.fruitless = 0
        # c10d hands over as input what a broadcast only writes.
        received = call.operation == "broadcast" and call.root != self.global_rank and not run.job.contents
        flat = flatten(() if received else memory[0])
        issued = run.collectives[self.global_rank]
        issued.append(call)
        meeting = run.meetings.get((self.label, place))
        if meeting is None:
            meeting = run.meetings[self.label, place] = Meeting()
        work = self._work(meeting, self.member, place + 1, call, outputs, memory, flat)
        if run.log is not None:
            work.entry = Entry(call, len(issued) - 1, self.member, self.members, meeting, run.now())
            run.log[self.global_rank].append(work.entry)
        self._join(meeting, place, call, flat)
        self._launched(work)
        if run.job.at_once:
            work.wait()
        return work

    def _work(
        self,
        meeting: Meeting,
        part: int,
        place: int,
        call: Collective,
        outputs: Tensors,
        memory: tuple[Tensors, Tensors],
        flat: Flat,
    ) -> SimWork:
        """The handle of what is launched, which is in flight from now on where the job has an `Asynchrony`."""
        if self.run.watches is None:
            return SimWork(self, meeting, part, outputs, memory[1], call, place)
        flight = Flight(self.run.watches[self.global_rank], meeting, part, place, call, memory, flat)
        meeting.flights[part] = flight
        return WatchedWork(self, meeting, part, outputs, memory[1], call, place, flight)

    def _launched(self, work: SimWork) -> SimWork:
        if self.run.watches is not None:
            self.run.watches[self.global_rank].moment()
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
            del self.run.meetings[self.label, place]  # nobody else comes; those who wait have it
            if self.run.log is not None:
                meeting.completed = self.run.now()
            meeting.carry_out(lambda inputs: self._results(meeting.calls, inputs))
        self.run.arrived(meeting)

    def _results(self, calls: dict[int, Collective], inputs: dict[int, Flat]) -> list[Flat | None]:
        ranks = range(len(self.members))
        in_turn = [calls[rank] for rank in ranks], [inputs[rank] for rank in ranks]
        return carry_out(*in_turn, self.members, self.run.combiner)

    def foreign_thread(self, does: str, what: object) -> NotRunnable:
        """The error for a call from a thread that is not the rank's."""
        return self.run.foreign_thread(self.global_rank, f"{does} {what}")
