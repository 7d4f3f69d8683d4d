"""Wrappers of collectives that autograd can differentiate: any strides, any group, the result returned, the right
adjoint.

Ranks are global ranks, as everywhere in `torch.distributed`. The order of members is that of the group. All except the
broadcast run as rings on send and receive (Patarasuk & Yuan, JPDC 2009). The loss of backward is the sum of the ranks'
losses, so the adjoint of y = A x is the transpose of A as a matrix over all members.
"""

from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Group: TypeAlias = dist.ProcessGroup | None


class Ring:
    """The members of a group as a ring, seen from this rank."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.members = dist.get_process_group_ranks(group)
        self.size, self.place = len(self.members), self.members.index(dist.get_rank())

    def exchange(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        """Send to the next member and receive from the one before. A tensor without elements is not sent."""
        right, left = self.members[(self.place + 1) % self.size], self.members[self.place - 1]
        messages = [
            dist.P2POp(function, tensor, peer, self.group)
            for function, tensor, peer in ((dist.isend, outgoing, right), (dist.irecv, incoming, left))
            if tensor.numel()
        ]
        if messages:
            for work in dist.batch_isend_irecv(messages):
                work.wait()

    def reduce(self, chunks: list[torch.Tensor], owned: int) -> None:
        """N - 1 steps after which chunk ``place + owned`` holds the sum over members; the others hold partial sums."""
        for step in range(self.size - 1):
            outgoing, target = (chunks[(self.place + owned - step - back) % self.size] for back in (1, 2))
            incoming = torch.empty_like(target)
            self.exchange(outgoing, incoming)
            target += incoming

    def gather(self, chunks: list[torch.Tensor], owned: int) -> None:
        """N - 1 steps after which every member has every chunk, from the members that own them."""
        for step in range(self.size - 1):
            outgoing, target = (chunks[(self.place + owned - step - back) % self.size] for back in (0, 1))
            self.exchange(outgoing, target)


def flat_copy(values: torch.Tensor) -> torch.Tensor:
    """The elements in row-major order, whatever the strides, in memory of their own."""
    return values.detach().clone(memory_format=torch.contiguous_format).reshape(-1)


def ring_all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
    """The sum or average over the members."""
    ring, total = Ring(group), flat_copy(values)
    chunks = list(total.tensor_split(ring.size))
    ring.reduce(chunks, owned=1)
    ring.gather(chunks, owned=1)
    return averaged(total, reduction, ring.size).view(values.shape)


def ring_reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
    """This member's part, along the first dimension, of the sum or average over the members."""
    ring = Ring(group)
    if len(values) % ring.size:
        raise ValueError(f"{len(values)} rows cannot be shared evenly by {ring.size} ranks: pad the first dimension")
    chunks = list(flat_copy(values).chunk(ring.size)) if values.numel() else [flat_copy(values)] * ring.size
    ring.reduce(chunks, owned=0)
    mine = averaged(chunks[ring.place].clone(), reduction, ring.size)
    return mine.view(len(values) // ring.size, *values.shape[1:])


def ring_all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
    """The members' tensors end to end along the first dimension."""
    ring, mine = Ring(group), flat_copy(values)
    chunks = [mine if place == ring.place else torch.empty_like(mine) for place in range(ring.size)]
    ring.gather(chunks, owned=0)
    return torch.cat(chunks).view(len(values) * ring.size, *values.shape[1:])


def averaged(total: torch.Tensor, reduction: str, ranks: int) -> torch.Tensor:
    """The sum, divided if the average is wanted."""
    if reduction not in ("sum", "average"):
        raise ValueError(f"a reduction is 'sum' or 'average', not {reduction!r}")
    return total / ranks if reduction == "average" else total


class AllReduce(torch.autograd.Function):
    """All-reduce. It is its own adjoint, with the same reduction."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """The collective."""
        context.reduction, context.group = reduction, group
        return ring_all_reduce(values, reduction, group)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """The adjoint."""
        return ring_all_reduce(gradient, context.reduction, context.group), None, None


class Broadcast(torch.autograd.Function):
    """Broadcast. Its adjoint is the sum at the root; the other members' inputs have gradient zero."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """The collective."""
        context.root, context.group = root, group
        result = flat_copy(values)
        dist.broadcast(result, src=root, group=group)
        return result.view(values.shape)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """The adjoint."""
        total = ring_all_reduce(gradient, "sum", context.group)
        return total if dist.get_rank() == context.root else torch.zeros_like(total), None, None


class ReduceScatter(torch.autograd.Function):
    """Reduce-scatter. Its adjoint is the all-gather, divided if it averages."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """The collective."""
        context.reduction, context.group = reduction, group
        return ring_reduce_scatter(values, reduction, group)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """The adjoint."""
        ranks = dist.get_world_size(context.group)
        return averaged(ring_all_gather(gradient, context.group), context.reduction, ranks), None, None


class AllGather(torch.autograd.Function):
    """All-gather. Its adjoint is the reduce-scatter of the sum."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: Group) -> torch.Tensor:
        """The collective."""
        context.group = group
        return ring_all_gather(values, group)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """The adjoint."""
        return ring_reduce_scatter(gradient, "sum", context.group), None


class Collectives:
    """The wrappers that P14 calls. Each returns its result and leaves its input unchanged."""

    claims = {
        "collectives": ("all_reduce", "broadcast", "reduce_scatter", "all_gather"),
        "differentiable": True,
        "sixteen_bits": True,
        "integers": True,
        "empty_parameters": True,
    }

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """The sum or average over the members of the group."""
        result: torch.Tensor = AllReduce.apply(values, reduction, group)
        return result

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """The values of the global rank ``root``."""
        result: torch.Tensor = Broadcast.apply(values, root, group)
        return result

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """This member's rows of the sum or average; the members share the rows evenly."""
        result: torch.Tensor = ReduceScatter.apply(values, reduction, group)
        return result

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """The members' rows, end to end."""
        result: torch.Tensor = AllGather.apply(values, group)
        return result
