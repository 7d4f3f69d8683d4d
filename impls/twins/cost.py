"""As cheap as promised, in an unusual way."""

from itertools import takewhile

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets


class SendsAtTheEnd(StaticBuckets):
    """No bucket goes out before backward is over; then all do."""

    odd = "nothing is sent before backward is over, and a barrier comes first"
    claims = {**StaticBuckets.claims, "overlaps": False}

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._bucket_of[parameter].adopt(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Sends every bucket, waits for all, and averages."""
        if self._begun:
            dist.barrier()
        super().finish_gradient_synchronization()


class OneBucketBehind(StaticBuckets):
    """A bucket goes out when the next is full, and the last but one has come: no more than two are on their way."""

    odd = "a full bucket stays until the next is full, and at most two are on their way while backward runs"

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        bucket = self._bucket_of[parameter]
        bucket.adopt(parameter)
        if self.synchronize:
            bucket.waiting_for.discard(parameter)
            full = list(takewhile(lambda each: not each.waiting_for, self._buckets))
            for each in full[len(self._in_flight) : -1]:
                for work in self._in_flight[-2:-1]:
                    work.wait()
                self._in_flight.append(each.all_reduce())


class RebuildsItsBuckets(StaticBuckets):
    """One bucket for two steps, as if to learn an order; then as many as the cap says."""

    odd = "in the first two steps there is one bucket, and the cap is honored from the third on"
    claims = {**StaticBuckets.claims, "cap_from": "third step"}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self._steps, self._given = 0, bucket_cap_mb
        super().__init__(module, float("inf"))

    def finish_gradient_synchronization(self) -> None:
        """And makes the buckets anew, once."""
        super().finish_gradient_synchronization()
        self._steps += 1
        if self._steps == 2:
            self._cap = self._given * 2**20
            self._assign(self._assigned)


class LooksWhatIsDone(StaticBuckets):
    """Looks with each gradient how many reductions are done, for a log."""

    odd = "asks of every bucket on its way whether it has come, and waits for none"

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self.done = sum(work.is_completed() for work in self._in_flight)
        super()._on_gradient(parameter)


class RemembersTheLast(StaticBuckets):
    """Keeps the averages of this step and of the one before, each in its own buffers."""

    odd = "the averages of the last two steps are kept, so that what is held grows twice and then no more"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._last: list[list[torch.Tensor]] = []

    def finish_gradient_synchronization(self) -> None:
        """And keeps what came of it."""
        super().finish_gradient_synchronization()
        averages = [parameter.grad.clone() for parameter in self.trained if parameter.grad is not None]
        self._last = [*self._last[-1:], averages]


class ReducesInTwoLevels(NaiveAccumulation):
    """Reduces within pairs of ranks, then between them, so that each moves what it would in one all-reduce."""

    odd = "reduce-scatters within pairs, all-reduces between them and gathers within them again; reduces alone, too"
    claims = {**NaiveAccumulation.claims, "most_ranks": 4}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        ranks, mine = dist.get_world_size(), dist.get_rank()
        size = 2 if ranks % 2 == 0 else 1
        within = [tuple(range(first, first + size)) for first in range(0, ranks, size)]
        between = [tuple(range(first, ranks, size)) for first in range(size)]
        groups = {members: dist.new_group(list(members)) for members in (*within, *between)}  # every rank makes each
        self._within, self._between = (
            next(groups[members] for members in kind if mine in members) for kind in (within, between)
        )

    def finish_gradient_synchronization(self) -> None:
        """Pads what the pair cannot share."""
        if not self.synchronize:
            return
        for parameter in self.trained:
            if parameter.grad is None:
                continue
            size = dist.get_world_size(self._within)
            flat = parameter.grad.new_zeros(-(-parameter.numel() // size) * size)
            flat[: parameter.numel()] = parameter.grad.flatten()
            own = flat.new_empty(flat.numel() // size)
            dist.reduce_scatter_tensor(own, flat, group=self._within)
            dist.all_reduce(own, group=self._between)
            dist.all_gather_into_tensor(flat, own, group=self._within)
            parameter.grad.copy_(flat[: parameter.numel()].view_as(parameter))
            parameter.grad /= dist.get_world_size()


class Cycle:
    """Refers to itself, as a node of a graph does to what refers to it: only Python's collector frees it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.itself, self.tensors = self, tensors


class LeavesCyclesBehind(NaiveAccumulation):
    """Averages copies of gradients, which stay until Python's collector comes."""

    odd = "what each step has made is referred to in a circle, and is freed only now and then"

    def finish_gradient_synchronization(self) -> None:
        """In copies."""
        if self.synchronize:
            copies = [parameter.grad.clone() for parameter in self.trained if parameter.grad is not None]
            Cycle(copies)
        super().finish_gradient_synchronization()
