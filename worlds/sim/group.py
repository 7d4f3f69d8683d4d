"""Collectives between simulated ranks: matched by their place in the group's sequence, compared, carried out, delivered.

A collective reads its input when it is launched. It is carried out when the last member arrives, and written to a
rank's output when that rank waits for it: whoever reads earlier, or never waits, does not see the result. Launching
never blocks. Members that disagree on a collective get a `Mismatch` that names both sides.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from worlds.collectives import DescribedGroup, Tensors, flatten, to_numpy
from worlds.contract import Collective
from worlds.sim.baton import Baton

Flat = torch.Tensor  # a collective's input or output on one rank, all tensors of the call end to end


class Mismatch(RuntimeError):
    """Members of a group called different collectives at the same place of the group's sequence."""


@dataclass
class Meeting:
    """One collective, as far as its members have arrived."""

    calls: dict[int, Collective] = field(default_factory=dict)
    inputs: dict[int, Flat] = field(default_factory=dict)
    results: list[Flat] | None = None
    mismatch: str = ""
    waiting: list[int] = field(default_factory=list)  # global ranks

    @property
    def over(self) -> bool:
        return self.results is not None or bool(self.mismatch)


@dataclass
class Run:
    """What the groups of all ranks share during one example."""

    baton: Baton
    contents: bool
    at_once: bool
    timeline: list[list[Collective]]  # by global rank
    issued: dict[tuple[str, int], int] = field(default_factory=dict)  # (group, member) -> collectives so far
    meetings: dict[tuple[str, int], Meeting] = field(default_factory=dict)  # (group, place in its sequence)
    failed: bool = False  # whether a rank raised an error of its own: others that then wait are not at fault


def carry_out(call: Collective, inputs: list[Flat]) -> list[Flat]:
    """The meaning of a collective, in rank order: one flat output for each member, empty where it gets nothing."""
    everyone = range(len(inputs))
    if call.operation == "barrier":
        return list(inputs)
    if call.operation == "broadcast":
        return [inputs[call.root] for _ in everyone]
    if call.operation == "all_gather":
        gathered = torch.cat(inputs)
        return [gathered for _ in everyone]
    total = _reduce(call.reduction, inputs)
    if call.operation == "all_reduce":
        return [total for _ in everyone]
    if call.operation == "reduce":
        return [total if member == call.root else inputs[member] for member in everyone]
    if call.operation == "reduce_scatter":
        return list(total.chunk(len(inputs)))
    raise NotImplementedError(f"the simulated world does not know {call.operation}")


def _reduce(reduction: str, inputs: list[Flat]) -> Flat:
    combine: Callable[[Flat, Flat], Flat] = {
        "sum": torch.add,
        "average": torch.add,
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
    }[reduction]
    total = inputs[0]
    for term in inputs[1:]:
        total = combine(total, term)
    return total / len(inputs) if reduction == "average" else total


class SimWork(dist.Work):
    """The handle of a launched collective on one rank."""

    def __init__(self, group: "SimGroup", meeting: Meeting, outputs: Tensors, reason: str) -> None:
        super().__init__()
        self._group, self._meeting, self._outputs, self._reason = group, meeting, outputs, reason
        self._delivered = False

    def is_completed(self) -> bool:
        """Whether all members have arrived."""
        return self._meeting.over

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until the collective is carried out, then writes this rank's outputs."""
        meeting, group = self._meeting, self._group
        while not meeting.over:
            meeting.waiting.append(group.global_rank)
            group.run.baton.block(group.global_rank, self._reason)
        if meeting.mismatch:
            raise Mismatch(meeting.mismatch)
        if not self._delivered:
            self._delivered = True
            assert meeting.results is not None
            _write(meeting.results[group.rank()], self._outputs)
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
    start = 0
    for output in outputs:
        # .data, as a real backend writes: past autograd and its version counter.
        count = output.numel()
        output.data.copy_(flat[start : start + count].view(output.shape))
        start += count


class SimGroup(DescribedGroup):
    """One rank's handle of a group in the simulated world. ``members``: global ranks, by rank in the group."""

    def __init__(self, rank: int, members: tuple[int, ...], label: str, run: Run) -> None:
        super().__init__(rank, len(members), label)
        self.members, self.global_rank, self.run = members, members[rank], run
        run.issued[label, rank] = 0

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        return "sim"

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        run, rank = self.run, self.rank()
        place = run.issued[self.label, rank]
        run.issued[self.label, rank] = place + 1
        flat = flatten(inputs)
        run.timeline[self.global_rank].append(replace(call, sent=to_numpy(flat)) if run.contents else call)
        meeting = run.meetings.setdefault((self.label, place), Meeting())
        self._join(meeting, place, call, flat)
        work = SimWork(self, meeting, outputs, f"{call}, collective {place + 1} of the {self.label} group")
        if run.at_once:
            work.wait()
        return work

    def _join(self, meeting: Meeting, place: int, call: Collective, flat: Flat) -> None:
        rank = self.rank()
        if meeting.calls and not meeting.mismatch:
            other, theirs = next(iter(meeting.calls.items()))
            if theirs != call:
                meeting.mismatch = (
                    f"ranks disagree on collective {place + 1} of the {self.label} group: " + ", ".join(
                        f"rank {self.members[member]} calls {said}" for member, said in sorted({other: theirs, rank: call}.items())
                    )
                )
        meeting.calls[rank], meeting.inputs[rank] = call, flat
        if len(meeting.calls) == len(self.members) and not meeting.mismatch:
            with torch.no_grad():
                meeting.results = carry_out(call, [meeting.inputs[member] for member in range(len(self.members))])
        if meeting.over:
            self.run.baton.wake(meeting.waiting)
            meeting.waiting = []
        if meeting.mismatch:
            raise Mismatch(meeting.mismatch)
