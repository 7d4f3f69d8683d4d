"""Collectives between simulated ranks: matched by place in the group's sequence, compared, carried out, delivered.

A collective reads its input when it is launched. It is carried out when the last member arrives, and written to a
rank's output when that rank waits for it: whoever reads earlier, or never waits, does not see the result. Launching
never blocks. Members that disagree on a collective get a `Mismatch` that names both sides.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.futures import Future

from worlds.collectives import DescribedGroup, Tensors, flatten, to_numpy
from worlds.contract import Collective
from worlds.sim.baton import Baton
from worlds.sim.belongings import Belongings

Flat: TypeAlias = torch.Tensor  # a collective's input or output on one rank, all tensors of the call end to end


class Mismatch(RuntimeError):
    """Members of a group called different collectives at the same place of the group's sequence."""


@dataclass
class Meeting:
    """One collective, as far as its members have arrived."""

    calls: dict[int, Collective] = field(default_factory=dict)
    inputs: dict[int, Flat] = field(default_factory=dict)
    results: list[Flat | None] | None = None
    mismatch: str = ""
    waiting: list[int] = field(default_factory=list)  # global ranks

    @property
    def over(self) -> bool:
        """Whether nobody need wait any longer."""
        return self.results is not None or bool(self.mismatch)


@dataclass
class Run:
    """What the groups of all ranks share during one example."""

    baton: Baton
    contents: bool
    at_once: bool
    timeline: list[list[Collective]]  # by global rank
    meetings: dict[tuple[str, int], Meeting] = field(default_factory=dict)  # (group, place in its sequence)
    belongings: dict[int, Belongings] = field(default_factory=dict)  # by global rank
    failed: bool = False  # whether a rank raised an error of its own: others that then wait are not at fault

    def block(self, rank: int, work: "SimWork") -> None:
        """Lets other ranks run until the work is over, and gives the rank back what is its own."""
        self.belongings[rank].put_away()
        try:
            self.baton.block(rank, work)
        finally:
            self.belongings[rank].take_out()


def carry_out(call: Collective, inputs: list[Flat]) -> list[Flat | None]:
    """The meaning of a collective, in rank order: one flat output for each member, None where it gets nothing."""
    members = len(inputs)
    if call.operation == "barrier":
        return [None] * members
    if call.operation == "broadcast":
        return [None if member == call.root else inputs[call.root] for member in range(members)]
    if call.operation == "all_gather":
        return [torch.cat(inputs)] * members
    total = _reduce(call.reduction, inputs)
    if call.operation == "all_reduce":
        return [total] * members
    if call.operation == "reduce":
        return [total if member == call.root else None for member in range(members)]
    if call.operation == "reduce_scatter":
        return list(total.chunk(members))
    raise NotImplementedError(f"the simulated world does not know {call.operation}")


_COMBINE = {
    "sum": torch.add,
    "average": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


def _reduce(reduction: str, inputs: list[Flat]) -> Flat:
    total = functools.reduce(_COMBINE[reduction], inputs)
    return total / len(inputs) if reduction == "average" else total


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
        queued later. Outside backward nobody would wait for us, so it blocks.
        """
        future: Future = Future()

        def complete() -> None:
            self.wait()
            future.set_result(list(self._outputs))

        if torch._C._current_graph_task_id() == -1:
            complete()
        else:
            torch.autograd.Variable._execution_engine.queue_callback(complete)
        return future


def _write(flat: Flat, outputs: Tensors) -> None:
    parts = [flat] if len(outputs) == 1 else flat.split([output.numel() for output in outputs])
    for output, part in zip(outputs, parts, strict=True):
        # .data, as a real backend writes: past autograd and its version counter.
        output.data.copy_(part.view_as(output))


class SimGroup(DescribedGroup):
    """One rank's handle of a group in the simulated world. ``members``: global ranks, by rank in the group."""

    def __init__(self, rank: int, members: tuple[int, ...], label: str, run: Run) -> None:
        super().__init__(rank, len(members), label)
        self.member, self.members, self.global_rank, self.run = rank, members, members[rank], run
        self._issued = 0  # collectives so far

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        """What `torch.distributed.get_backend` shows."""
        return "sim"

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Joins the members that have called it already; the last one carries it out. Raises Mismatch."""
        run, place = self.run, self._issued
        self._issued += 1
        flat = flatten(inputs)
        run.timeline[self.global_rank].append(replace(call, sent=to_numpy(flat)) if run.contents else call)
        meeting = run.meetings.setdefault((self.label, place), Meeting())
        self._join(meeting, place, call, flat)
        work = SimWork(self, meeting, outputs, call, place)
        if run.at_once:
            work.wait()
        return work

    def _join(self, meeting: Meeting, place: int, call: Collective, flat: Flat) -> None:
        if meeting.calls and not meeting.mismatch:
            other, theirs = next(iter(meeting.calls.items()))
            if theirs != call:
                calls = sorted({other: theirs, self.member: call}.items())
                meeting.mismatch = f"ranks disagree on collective {place + 1} of the {self.label} group: " + ", ".join(
                    f"rank {self.members[member]} calls {said}" for member, said in calls
                )
        meeting.calls[self.member], meeting.inputs[self.member] = call, flat
        if len(meeting.calls) == len(self.members) and not meeting.mismatch:
            meeting.results = carry_out(call, [meeting.inputs[member] for member in range(len(self.members))])
        if meeting.over:
            self.run.baton.wake(meeting.waiting)
            meeting.waiting = []
        if meeting.mismatch:
            raise Mismatch(meeting.mismatch)


def _missing(operation: str) -> Callable[..., dist.Work]:
    def method(*_: Any, **__: Any) -> dist.Work:
        raise NotImplementedError(f"the simulated world has no {operation} yet; gloo has")

    return method


# Said by every rank before any harm, so that it reads as what it is and not as a crash of the implementation.
for _operation in (
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
):
    setattr(SimGroup, _operation, _missing(_operation))
