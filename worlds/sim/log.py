"""The log of an example, as it is written: its timeline, what went in and out, and what a ring would move."""

from dataclasses import dataclass, replace

import torch

from lockstep.worlds.contract import Collective, Passage
from lockstep.worlds.described_group import in_numpy
from lockstep.worlds.sim.meeting import Meeting


@dataclass
class Entry:
    """One collective on one rank. ``place``: among all that it issued, from 0. ``rank`` is its rank in the group."""

    collective: Collective
    place: int
    rank: int
    members: tuple[int, ...]
    meeting: Meeting
    launched: int
    waited: int | None = None
    polled: bool = False

    def passage(self) -> Passage:
        """The entry as it is reported."""
        call = self.collective
        size = getattr(torch, call.dtype).itemsize if call.dtype else 0
        root = self.members.index(call.root) if call.root >= 0 else -1
        sent, messages = on_a_ring(replace(call, root=root), self.rank, len(self.members), size)
        times = (self.launched, self.meeting.completed, self.waited)
        return Passage(call, self.members, call.count * size, *times, sent, messages, self.polled)

    def with_contents(self) -> Collective:
        """The collective with what this rank put in, and what it got, if it has waited for it."""
        results = self.meeting.results if self.waited is not None else None
        got = None if results is None else results[self.rank]
        sent = in_numpy(self.meeting.inputs[self.rank])
        return replace(self.collective, sent=sent, got=None if got is None else in_numpy(got))


def on_a_ring(call: Collective, rank: int, members: int, element_bytes: int) -> tuple[int, int]:
    """The bytes and messages that this member sends if the collective is a ring's, of N members and n elements here.

    ``call.root`` is a rank in the group here, like ``rank``.

        reduce_scatter        N - 1 messages, of every chunk but the last that comes by; chunks as even as can be
        all_gather            N - 1 messages of n elements
        all_reduce            both, of chunks: 2 (N - 1)
        broadcast, reduce     1 message of n elements, but for the end of the chain
        barrier               2 messages of nothing: once round to know that all are there, once to tell

    Of anything else nothing is known: 0 messages. Source: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms
    for clusters of workstations", JPDC 2009.
    """
    others, whole = members - 1, call.count * element_bytes
    if others == 0:
        return 0, 0
    chunks = [(call.count // members + (chunk < call.count % members)) * element_bytes for chunk in range(members)]
    match call.operation:
        case "reduce_scatter":  # rank r starts with chunk r - 1 and ends with r + 1; chunk r stays
            return whole - chunks[rank], others
        case "all_gather":
            return others * whole, others
        case "all_reduce":  # chunk r + 1 arrives complete and is not sent on; then r + 2 arrives and stays
            return 2 * whole - chunks[(rank + 1) % members] - chunks[(rank + 2) % members], 2 * others
        case "broadcast":
            last = (rank - call.root) % members == others
            return (0, 0) if last else (whole, 1)
        case "reduce":
            return (0, 0) if rank == call.root else (whole, 1)
        case "barrier":
            return 0, 2
        case _:
            return 0, 0
