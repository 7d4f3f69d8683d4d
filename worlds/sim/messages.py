"""Sends and receives between simulated ranks: matched by group, peer and tag, in the order in which they were posted.

As on gloo and nccl, a send ends when its receive is there: two ranks that both send first wait for each other. A send
reads its tensor when it is posted; a receive writes its own when it is waited for. A partner with another dtype or
count is an error on both sides (gloo would reinterpret the bytes, or fill a part of the tensor, and tell nobody).
"""

from _thread import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from worlds.collectives import flatten
from worlds.contract import Collective
from worlds.sim.meeting import Flat, Mismatch

if TYPE_CHECKING:
    from worlds.sim.group import SimGroup


class MessageWork(dist.Work):
    """The handle of a send or a receive on one rank."""

    def __init__(self, group: "SimGroup", call: Collective, tensor: torch.Tensor) -> None:
        super().__init__()
        self.group, self.call, self.tensor = group, call, tensor
        self.flat: Flat | None = flatten([tensor]) if call.operation == "send" else None
        self.partner: MessageWork | None = None
        self.mismatch = ""
        self._waiting = self._delivered = False

    def __str__(self) -> str:
        return f"{self.call} in the {self.group.label} group"

    def meets(self, other: "MessageWork") -> bool:
        """Whether one of the two is the send that the other receives."""
        send, receive = (self, other) if self.call.operation == "send" else (other, self)
        if send.call.operation == receive.call.operation or send.call.tag != receive.call.tag:
            return False
        return send.call.root == receive.group.global_rank and receive.call.root in (-1, send.group.global_rank)

    def join(self, other: "MessageWork") -> None:
        """The partner is there: whoever waits for it may go on. Raises Mismatch if the two cannot be one message."""
        self.partner, other.partner = other, self
        if (self.call.dtype, self.call.count) != (other.call.dtype, other.call.count):
            both = sorted((work.group.global_rank, str(work.call)) for work in (self, other))
            told = ", ".join(f"rank {rank} calls {call}" for rank, call in both)
            self.mismatch = other.mismatch = f"ranks disagree on a message in the {self.group.label} group: {told}"
        if other._waiting:
            self.group.run.baton.wake([other.group.global_rank])
        if self.mismatch:
            raise Mismatch(self.mismatch)

    def is_completed(self) -> bool:
        """Whether the partner is there. If not yet, others run first, as for a collective."""
        self._on_the_ranks_thread("polls")
        if self.partner is None:
            self.group.run.poll(self.group.global_rank, self)
        return self.partner is not None

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until the partner is there; a receive then writes its tensor."""
        self._on_the_ranks_thread("waits for")
        rank, run = self.group.global_rank, self.group.run
        while self.partner is None:
            self._waiting = True
            run.block(rank, self)
        self._waiting = False
        if self.mismatch:
            raise Mismatch(self.mismatch)
        sent = self.partner.flat
        if sent is not None and not self._delivered:
            self._delivered = True
            self.tensor.data.copy_(sent.view_as(self.tensor))
        return True

    def _on_the_ranks_thread(self, does: str) -> None:
        if get_ident() != self.group.thread:
            raise self.group.foreign_thread(does, self)

    def _source_rank(self) -> int:
        """The member that sent what a receive from any rank got."""
        sender = self.partner if self.call.operation == "recv" else self
        if sender is None:
            raise RuntimeError(f"{self}: nobody has sent yet; wait for it first")
        return sender.group.member

    def get_future(self) -> Future:
        """Has the tensor. Blocks, since nobody else would wait for it."""
        self.wait()
        future: Future = Future()
        future.set_result([self.tensor])
        return future


def post(group: "SimGroup", call: Collective, tensor: torch.Tensor) -> MessageWork:
    """Pairs a send or a receive with the oldest that waits for it, or lets it wait. Raises Mismatch."""
    work, pending = MessageWork(group, call, tensor), group.run.messages.setdefault(group.label, [])
    for other in pending:
        if work.meets(other):
            pending.remove(other)
            work.join(other)
            return work
    pending.append(work)
    return work
