"""Sends and receives between simulated ranks: matched by group, peer and tag, in the order in which they were posted.

A message is a meeting of its sender and its receiver, so it reads and writes when a collective does. As on gloo and
nccl, a send ends when its receive is there: two ranks that both send first wait for each other. A partner with another
dtype or count is an error on both sides. gloo would reinterpret the bytes, or fill a part of the tensor, without an
error.
"""

from typing import TYPE_CHECKING

from lockstep.worlds.contract import MESSAGES, Collective
from lockstep.worlds.sim.meeting import Flat, Meeting

if TYPE_CHECKING:
    from lockstep.worlds.sim.group import SimGroup


def end(call: Collective) -> int:
    """The end of its message that a call is: 0 sends, 1 receives."""
    return MESSAGES.index(call.operation)


def meeting_of(group: "SimGroup", call: Collective) -> Meeting:
    """The meeting of a send or receive with its partner: the oldest that fits, or a new one that waits."""
    pending = group.run.messages.setdefault(group.label, [])
    for place, (other, theirs, meeting) in enumerate(pending):
        fits = theirs.operation != call.operation and theirs.tag == call.tag
        if fits and _is_for(call, other.global_rank) and _is_for(theirs, group.global_rank):
            del pending[place]
            return meeting
    meeting = Meeting()
    pending.append((group, call, meeting))
    return meeting


def _is_for(call: Collective, peer: int) -> bool:
    return call.root == peer or (call.operation == "recv" and call.root < 0)  # from any rank


def join(group: "SimGroup", meeting: Meeting, call: Collective, flat: Flat) -> None:
    """This end is there, and the message is carried out if the other is. Raises Mismatch if they cannot be one."""
    meeting.calls[end(call)], meeting.inputs[end(call)] = call, flat
    if call.operation == "send":
        meeting.source = group.member
    if len(meeting.calls) == len(MESSAGES):
        send, receive = meeting.calls[0], meeting.calls[1]
        if (send.dtype, send.count) == (receive.dtype, receive.count):
            meeting.carry_out(lambda inputs: [None, inputs[0]])
        else:
            assert meeting.source is not None
            both = sorted([(group.members[meeting.source], str(send)), (send.root, str(receive))])
            told = ", ".join(f"rank {rank} calls {said}" for rank, said in both)
            meeting.mismatch = f"ranks disagree on a message in the {group.label} group: {told}"
    group.run.arrived(meeting)
