"""Twins that take the mean over ranks in unusual ways: other collectives, another order, another place to divide.

Each agrees, parameter by parameter, on how many ranks have a gradient; one that no rank used keeps its own untouched.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import ROBUST, DataParallel
from lockstep.impls.zero3 import tensors_in


class PerParameter(DataParallel):
    """After backward each parameter's mean, in registration order. The twins change one step of it each."""

    odd = "asks first who has a gradient, then one all-reduce per parameter"
    claims = {**ROBUST, "accumulation": True, "unused": "untouched"}

    def finish_gradient_synchronization(self) -> None:
        """Agrees on who has a gradient, then takes the mean of those, a missing one counting as zero."""
        parameters = self.in_order()
        used = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
        dist.all_reduce(used)
        for parameter, ranks in zip(parameters, used.tolist(), strict=True):
            if ranks:
                local = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.mean(local.flatten()).view_as(parameter)

    def in_order(self) -> list[nn.Parameter]:
        """The parameters in the order in which their gradients are sent."""
        return self.trained

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """The mean over ranks of a flat gradient, which stays as it is."""
        total = local.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()


class AfterBackward(PerParameter):
    """Asks for the mean from inside backward, and is done when that returns."""

    odd = "what each forward has computed, when backward gets to it, asks for the mean at the end of that backward"
    # A view that is changed loses its hook, and a loss of gradients passes it by.
    claims = {**PerParameter.claims, "in_place": False, "double_backward": False}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Several may come before the one backward."""
        outputs = super().forward(*inputs, **named)
        self._asked = False
        for output in tensors_in(outputs):
            if output.requires_grad and self.synchronize:
                output.register_hook(self._ask)
        return outputs

    def _ask(self, gradient: torch.Tensor) -> None:
        if not self._asked:
            self._asked = True
            torch.autograd.Variable._execution_engine.queue_callback(super().finish_gradient_synchronization)

    def finish_gradient_synchronization(self) -> None:
        """Nothing is left to do."""


class ReversedOrder(PerParameter):
    """Sends the parameter that was registered last first."""

    odd = "per-parameter all-reduces after backward, in reversed order"

    def in_order(self) -> list[nn.Parameter]:
        """Backwards."""
        return self.trained[::-1]


class DivideBeforeSum(PerParameter):
    """Divides what is sent instead of what arrives."""

    odd = "divides before the sum"
    claims = {**PerParameter.claims, "averaging": "divide then sum"}

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """The sum of quotients."""
        quotient = local / dist.get_world_size()
        dist.all_reduce(quotient)
        return quotient


class ScatterThenGather(PerParameter):
    """All-reduces by a reduce-scatter of padded chunks and an all-gather of their means."""

    odd = "a reduce-scatter and an all-gather in place of the all-reduce, with padding to a multiple of the ranks"

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Each rank divides one chunk."""
        ranks = dist.get_world_size()
        padded = local.new_zeros(-(-local.numel() // ranks) * ranks)
        padded[: local.numel()] = local
        chunk = padded.new_empty(padded.numel() // ranks)
        dist.reduce_scatter_tensor(chunk, padded)
        chunk /= ranks
        dist.all_gather_into_tensor(padded, chunk)
        return padded[: local.numel()]


class SumInRankOrder(PerParameter):
    """Gathers all gradients everywhere; rank 0 adds them up in rank order, divides, and broadcasts the mean."""

    odd = "rank 0 adds up gathered gradients in rank order and broadcasts the mean"

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Rank 0's."""
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local.contiguous())
        mean = torch.zeros_like(local)
        if dist.get_rank() == 0:
            for part in parts:
                mean += part
            mean /= len(parts)
        dist.broadcast(mean, src=0)
        return mean


class TwoLevels(PerParameter):
    """Sums within groups of consecutive ranks, then between the groups: replicas of shards that shard nothing."""

    odd = "one all-reduce within groups and one between them"
    claims = {**PerParameter.claims, "replicas": True}

    def __init__(self, module: nn.Module, replicas: int = 1) -> None:
        super().__init__(module)
        self.replicas, self.size = replicas, dist.get_world_size() // replicas
        rank = dist.get_rank()
        for number in range(replicas):  # every rank makes every group
            members = range(number * self.size, (number + 1) * self.size)
            group = dist.new_group(list(members))
            if rank in members:
                self.within = group
        for number in range(self.size):
            members = range(number, dist.get_world_size(), self.size)
            group = dist.new_group(list(members))
            if rank in members:
                self.between = group

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Divides once, by the number of all ranks."""
        total = local.clone()
        dist.all_reduce(total, group=self.within)
        dist.all_reduce(total, group=self.between)
        return total / dist.get_world_size()


class EverythingInFloat64(DataParallel):
    """One all-reduce for all gradients and flags, whatever their dtypes, in float64."""

    odd = "one float64 buffer for everything, each mean rounded to its parameter's dtype"
    claims = PerParameter.claims

    def finish_gradient_synchronization(self) -> None:
        """One collective for each synchronization."""
        parameters = self.trained
        if not parameters:
            return
        parts = [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in parameters]
        used = parts[0].new_tensor([parameter.grad is not None for parameter in parameters])
        everything = torch.cat([*parts, used])
        dist.all_reduce(everything)
        *means, counts = everything.split([*(part.numel() for part in parts), len(parts)])
        for parameter, mean, ranks in zip(parameters, means, counts.tolist(), strict=True):
            if ranks:
                parameter.grad = (mean / dist.get_world_size()).to(parameter.dtype).view_as(parameter)


class ReducesEveryMicroBatch(PerParameter):
    """Averages accumulated gradients when the next micro-batch begins, inside `no_sync` as well."""

    odd = "every micro-batch is reduced, as where only a shard of the gradients is kept"
    claims = {
        **PerParameter.claims,
        **dict.fromkeys(("silent_no_sync", "several_forwards", "survives_errors", "measures_late"), False),
        "acts_alone": False,
    }

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._begun = False  # whether a forward has run since gradients were averaged

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Averages what the last one's backward has added; to be trained with, though this may be an evaluation."""
        with torch.inference_mode(False):
            self.finish_gradient_synchronization()
        self._begun = torch.is_grad_enabled()
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages, unless that has been done."""
        if self._begun:
            super().finish_gradient_synchronization()
        self._begun = False


class RingOfBuffers(PerParameter):
    """Three buffers for each size take turns; what is averaged in one is copied out of it."""

    odd = "gradients are averaged in memory that three windows share in turn"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._rings: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """In the buffer that was used longest ago."""
        three = [torch.zeros_like(local) for _ in range(3)]
        ring = self._rings.setdefault((local.numel(), local.dtype), three)
        ring.append(buffer := ring.pop(0))
        self.fill(buffer, local)
        return super().mean(buffer)

    def fill(self, buffer: torch.Tensor, gradient: torch.Tensor) -> None:
        """Overwrites what it has of its last use."""
        buffer.copy_(gradient)


class ByMessages(PerParameter):
    """Every rank sends to every other, and adds up what arrives in the order of ranks."""

    odd = "no reduction at all: messages from each rank to each, a batch of them at once"

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Receives are listed before sends, and waited for in the order of the list."""
        own, ranks = dist.get_rank(), dist.get_world_size()
        shares = [local.clone() if rank == own else torch.empty_like(local) for rank in range(ranks)]
        others = [rank for rank in range(ranks) if rank != own]
        messages = [dist.P2POp(dist.irecv, shares[rank], rank) for rank in others]
        messages += [dist.P2POp(dist.isend, shares[own], rank) for rank in others]
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()
        return sum(shares[1:], shares[0]) / ranks


class RingOfMessages(PerParameter):
    """A ring all-reduce: 2 (N - 1) turns, each a chunk to the right and another from the left."""

    odd = "a ring all-reduce by hand, on isend and irecv"

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Chunks are added up on the way round, and whole from the turn N - 1 on."""
        rank, ranks, total = dist.get_rank(), dist.get_world_size(), local.clone()
        self.right, self.left = (rank + 1) % ranks, (rank - 1) % ranks
        chunks = total.tensor_split(ranks)
        for turn in range(2 * (ranks - 1)):
            self.turn(chunks[(rank - turn) % ranks], chunks[(rank - turn - 1) % ranks], adds=turn < ranks - 1)
        return total / ranks

    def turn(self, ours: torch.Tensor, theirs: torch.Tensor, adds: bool) -> None:
        """Sends our chunk; adds to theirs what comes, or puts it there."""
        incoming = torch.empty_like(theirs)
        receive, send = dist.irecv(incoming, self.left), dist.isend(ours, self.right)
        receive.wait()
        theirs.copy_(theirs + incoming if adds else incoming)
        send.wait()


class OnRankZero(PerParameter):
    """Rank 0 takes what the others send as it comes, adds up and sends the mean back."""

    odd = "no reduction at all: rank 0 receives from whichever rank sends first"

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Sends of two kinds are told apart by their tags. gloo takes no empty message from whoever sends it."""
        total, ranks = local.clone(), dist.get_world_size()
        if not total.numel():
            return total
        if dist.get_rank() > 0:
            dist.isend(total, 0, tag=1).wait()
            dist.recv(total, 0, tag=2)
            return total
        for _ in range(ranks - 1):
            share = torch.empty_like(local)
            dist.recv(share, tag=1)
            total += share
        total /= ranks
        for work in [dist.isend(total, rank, tag=2) for rank in range(1, ranks)]:
            work.wait()
        return total


class FinalInItsHooks(DataParallel):
    """Waits in each hook for that one reduction, so that hooks that come later find the mean."""

    odd = "each gradient is final in its own hook, where ranks go backward in one order"
    claims = {"accumulation": True, "hook_order": False, "final_in_hooks": True}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._reduce)

    def _reduce(self, parameter: torch.Tensor) -> None:
        if self.synchronize:
            assert parameter.grad is not None
            work = dist.all_reduce(parameter.grad, async_op=True)
            assert work is not None
            work.wait()
            parameter.grad /= dist.get_world_size()
