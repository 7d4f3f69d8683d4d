"""Collectives in flight handled in unusual ways that are right whenever they read and write."""

import torch
import torch.distributed as dist

from lockstep.impls.average import average_
from lockstep.impls.naive import NaiveDataParallel
from lockstep.impls.static_buckets import StaticBuckets


class PollsInReverse(StaticBuckets):
    """Polls its buckets, the last first, and averages each as soon as it is seen to be done."""

    odd = "polls, in reverse order, instead of waiting in the order of the launches"

    def finish_gradient_synchronization(self) -> None:
        """Sends the rest; polls until all are done."""
        if self._begun:
            for bucket in self._buckets[len(self._in_flight) :]:
                self._in_flight.append(bucket.all_reduce())
            left = list(zip(self._in_flight, self._buckets, strict=True))
            while left:
                for work, bucket in left[::-1]:
                    if work.is_completed():
                        work.wait()
                        bucket.average(None)
                        left.remove((work, bucket))
            self._in_flight.clear()
            self._begun = False


class GathersAndAdds(NaiveDataParallel):
    """All-gathers the gradients, one handle for each, and adds them up itself from the last rank to the first."""

    odd = "gathers what all ranks have and adds it up itself, from the last rank to the first"

    def finish_gradient_synchronization(self) -> None:
        """Launches all, then waits and adds."""
        ranks, in_flight = dist.get_world_size(), []
        for parameter in self.trained:
            if parameter.grad is not None:
                everybodys = [torch.empty_like(parameter.grad) for _ in range(ranks)]
                work = dist.all_gather(everybodys, parameter.grad, async_op=True)
                in_flight.append((work, everybodys, parameter.grad))
        for work, everybodys, gradient in in_flight:
            work.wait()
            gradient.copy_(everybodys.pop())
            while everybodys:
                gradient.add_(everybodys.pop())
            average_(gradient, ranks)
