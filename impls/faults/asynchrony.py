"""Misuses of handles and tensors in flight, one each. A synchronous backend hides them all.

Collectives over one correct algorithm: a bucket for each parameter, sent when its gradient is final and every earlier
one was sent. Messages over another: a ring all-reduce for each parameter.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.main_grad_buckets import MainGradBuckets
from lockstep.impls.static_buckets import Bucket, StaticBuckets
from lockstep.impls.twins.reductions import RingOfMessages

LAW = ("test_collectives_may_read_and_write_at_any_time",)


class NeverWaits(StaticBuckets):
    """Averages without having waited for the all-reduces."""

    known_fault = "work is launched and never waited for"
    source = "recipe"
    killed_by = LAW

    def finish_gradient_synchronization(self) -> None:
        """Sends the rest and averages at once."""
        if self._begun:
            self._send_the_rest()
            for bucket in self._buckets:
                bucket.average(None)
            self._begun = False


class SendsWhatIsOnItsWay(MainGradBuckets):
    """Sends all main gradients at the end of each backward, of which there may be a second."""

    known_fault = "a second backward adds to what the first has sent, and sends it again, before that has arrived"
    source = "recipe: written here, and right for as long as a collective takes no time"
    claims = {**MainGradBuckets.claims, "backwards": "anywhere"}
    killed_by = LAW


class ReadsBeforeWaiting(StaticBuckets):
    """Divides each bucket before it waits for it."""

    known_fault = "the sum is divided in place before the wait"
    source = "recipe"
    killed_by = LAW

    def finish_gradient_synchronization(self) -> None:
        """Sends the rest; divides; waits."""
        if self._begun:
            self._send_the_rest()
            for work, bucket in zip(self._in_flight, self._buckets, strict=True):
                bucket.average(None)
                work.wait()
            self._in_flight.clear()
            self._begun = False


class WaitsForTheLast(StaticBuckets):
    """Waits for the last all-reduce only, as if those before it had to be done by then."""

    known_fault = "of several collectives in flight only the last is waited for"
    source = "recipe"
    killed_by = LAW

    def finish_gradient_synchronization(self) -> None:
        """Sends the rest; waits once."""
        if self._begun:
            self._send_the_rest()
            self._in_flight[-1].wait()
            for bucket in self._buckets:
                bucket.average(None)
            self._in_flight.clear()
            self._begun = False


class _Done:
    """A substitute that is kept in place of a handle."""

    def wait(self) -> None:
        """Waits for nothing."""


class _Forgetful(Bucket):
    def all_reduce(self) -> Any:
        super().all_reduce()
        return _Done()


class DropsHandles(StaticBuckets):
    """Keeps no handle, so nobody can wait; what is in flight may be freed, and is read too early."""

    known_fault = "the handle of a collective in flight is dropped"
    source = "E06 V https://github.com/karpathy/nanochat/pull/843"
    killed_by = LAW
    bucket_class = _Forgetful


class _Cleared(Bucket):
    def all_reduce(self) -> dist.Work:
        work = super().all_reduce()
        self.elements.zero_()
        return work


class ClearsInFlight(StaticBuckets):
    """Zeroes what the next micro-batch will be added to as soon as a bucket was launched."""

    known_fault = "gradients are zeroed while their all-reduce is in flight"
    source = "E08 V https://github.com/horovod/horovod/pull/1116"
    killed_by = LAW
    bucket_class = _Cleared


class ClipsInFlight(StaticBuckets):
    """Clips to a norm so large that nothing changes, and does it before it waits."""

    known_fault = "gradients are clipped before their communication is complete"
    source = "E09 V https://github.com/determined-ai/determined/pull/602"
    killed_by = LAW

    def finish_gradient_synchronization(self) -> None:
        """Sends the rest; clips; waits."""
        if self._begun:
            self._send_the_rest()
            torch.nn.utils.clip_grad_norm_(self.trained, 2.0**20)
        super().finish_gradient_synchronization()


class _Staged(Bucket):
    stage: torch.Tensor

    def all_reduce(self) -> dist.Work:
        whole, self.buffer = self.buffer, self.stage
        whole_flags, self.flags = self.flags, self.stage[-len(self.views) :]
        self.fill()
        self.buffer[: len(self.elements)] = self.elements
        work: dist.Work = dist.all_reduce(self.buffer, async_op=True)
        self.buffer, self.flags = whole, whole_flags
        return work

    def average(self, kernels: bool | None) -> None:
        self.buffer.copy_(self.stage)
        super().average(kernels)


class OneStagingBuffer(StaticBuckets):
    """Sends every bucket of a dtype from one staging buffer, to save memory."""

    known_fault = "the input buffer of a collective in flight is filled again for the next"
    source = "recipe"
    killed_by = LAW
    bucket_class = _Staged

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        largest: dict[torch.dtype, int] = {}
        for bucket in self._buckets:
            largest[bucket.buffer.dtype] = max(largest.get(bucket.buffer.dtype, 0), bucket.buffer.numel())
        stages = {dtype: torch.zeros(size, dtype=dtype) for dtype, size in largest.items()}
        for bucket in self._buckets:
            assert isinstance(bucket, _Staged)
            bucket.stage = stages[bucket.buffer.dtype][: bucket.buffer.numel()]


class AddsBeforeItHasCome(RingOfMessages):
    """Adds the chunk from the left before it waits for it."""

    known_fault = "what a message brings is read before the wait"
    source = "recipe"
    killed_by = LAW

    def turn(self, ours: torch.Tensor, theirs: torch.Tensor, adds: bool) -> None:
        """Posts both; adds; waits."""
        incoming = torch.empty_like(theirs)
        receive, send = dist.irecv(incoming, self.left), dist.isend(ours, self.right)
        theirs.copy_(theirs + incoming if adds else incoming)
        receive.wait()
        send.wait()


class NeverWaitsForSends(RingOfMessages):
    """Takes it that a chunk was sent when the next one comes, and keeps no handle of it."""

    known_fault = "the handle of a send is dropped"
    source = "recipe"
    killed_by = LAW

    def turn(self, ours: torch.Tensor, theirs: torch.Tensor, adds: bool) -> None:
        """Waits for the receive alone."""
        incoming = torch.empty_like(theirs)
        dist.isend(ours, self.right)
        dist.recv(incoming, self.left)
        theirs.copy_(theirs + incoming if adds else incoming)


class SendsFromOneBuffer(RingOfMessages):
    """Copies every chunk to one buffer to send it, and waits for all sends at the end."""

    known_fault = "the buffer of a send in flight is filled again for the next"
    source = "recipe"
    killed_by = LAW

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Waits last."""
        self.buffer, self.sends = torch.empty_like(local), list[dist.Work]()
        mean = super().mean(local)
        for send in self.sends:
            send.wait()
        return mean

    def turn(self, ours: torch.Tensor, theirs: torch.Tensor, adds: bool) -> None:
        """Waits for the receive alone."""
        incoming, sent = torch.empty_like(theirs), self.buffer[: len(ours)]
        sent.copy_(ours)
        self.sends.append(dist.isend(sent, self.right))
        dist.recv(incoming, self.left)
        theirs.copy_(theirs + incoming if adds else incoming)


class DropsWhatAnErrorLeft(StaticBuckets):
    """Buckets that are made anew have nothing on its way."""

    known_fault = "what a backward cut short has sent is not waited for where buckets are made anew next"
    source = "recipe: a list that is emptied with the buckets"
    killed_by = LAW

    def prepare(self) -> None:
        trained = self.trained
        if list(map(id, trained)) != list(map(id, self._assigned)):
            self._in_flight.clear()
            self._assign(trained)
        super().prepare()
