"""Commands like those of `worlds.tests.commands`: what moves between ranks in other ways, and other reductions."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]
Call = Mapping[str, Any]

BITS = {"band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR}


def data(rank: int, count: int, dtype: str = "float64") -> torch.Tensor:
    """1, 2, 3, ... on rank 0, 11, 12, 13, ... on rank 1, and so on: no two alike. In bool: which are multiples of 3."""
    if dtype == "bool":
        return data(rank, count) % 3 == 0
    return torch.arange(1, count + 1).add(10 * rank).to(getattr(torch, dtype))


def rows(giver: int, taker: int) -> int:
    """How many rows go from one rank to another where that is uneven; sometimes none."""
    return (giver + 2 * taker + 1) % 3


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def reduce_bits(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    _wait(dist.all_reduce(mine, BITS[call["reduction"]], async_op=call["asynchronous"]))
    return [mine]


def premul_sum(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Each rank has a factor of its own."""
    output = mine.new_zeros(len(mine) // size)
    operation = dist._make_nccl_premul_sum(0.5 * (rank + 1))
    dist.reduce_scatter_tensor(output, mine, operation)
    _wait(dist.all_reduce(mine, operation, async_op=call["asynchronous"]))
    return [mine, output]


def gather(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    outputs = [torch.zeros_like(mine) for _ in range(size)] if rank == call["root"] else None
    _wait(dist.gather(mine, outputs, dst=call["root"], async_op=call["asynchronous"]))
    return outputs or []


def scatter(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    output = mine.new_zeros(len(mine) // size)
    parts = list(mine.chunk(size)) if rank == call["root"] else None
    _wait(dist.scatter(output, parts, src=call["root"], async_op=call["asynchronous"]))
    return [output]


def all_to_all(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    outputs = [torch.zeros_like(part) for part in mine.chunk(size)]
    _wait(dist.all_to_all(outputs, list(mine.chunk(size)), async_op=call["asynchronous"]))
    return outputs


def all_to_all_single(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    output = torch.zeros_like(mine)
    _wait(dist.all_to_all_single(output, mine, async_op=call["asynchronous"]))
    return list(output.chunk(size))


def _uneven(rank: int, size: int, mine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    gives, takes = [rows(rank, peer) for peer in range(size)], [rows(peer, rank) for peer in range(size)]
    source = data(rank, 2 * sum(gives), str(mine.dtype).removeprefix("torch.")).reshape(-1, 2)
    return source, mine.new_zeros(sum(takes), 2), gives, takes


def all_to_all_single_uneven(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    source, output, gives, takes = _uneven(rank, size, mine)
    _wait(dist.all_to_all_single(output, source, takes, gives, async_op=call["asynchronous"]))
    return list(output.split(takes))


def all_to_all_uneven(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    source, output, gives, takes = _uneven(rank, size, mine)
    outputs = list(output.split(takes))
    _wait(dist.all_to_all(outputs, list(source.split(gives)), async_op=call["asynchronous"]))
    return outputs


def all_gather_uneven(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Rank r has r elements."""
    outputs = [mine.new_zeros(other) for other in range(size)]
    _wait(dist.all_gather(outputs, mine[:rank], async_op=call["asynchronous"]))
    return outputs


def reduce_scatter_uneven(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Rank r gets 2 r + 1 elements."""
    sizes = [2 * other + 1 for other in range(size)]
    source, output = data(rank, sum(sizes), call["dtype"]), mine.new_zeros(sizes[rank])
    _wait(dist.reduce_scatter(output, list(source.split(sizes)), async_op=call["asynchronous"]))
    return [output]


def all_gather_coalesced(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Two tensors at once, one list for each rank."""
    outputs = [[torch.zeros_like(mine), mine.new_zeros(2)] for _ in range(size)]
    future = dist.all_gather_coalesced(outputs, [mine, mine[:2] * 3], async_op=call["asynchronous"])
    if future is not None:
        future.wait()
    return [tensor for pair in outputs for tensor in pair]


def coalescing_all_reduce(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    tensors = [mine, mine[:2] * 3]
    with dist._coalescing_manager(async_ops=call["asynchronous"]) as both:
        for tensor in tensors:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
    both.wait()
    return tensors


def coalescing_all_gather(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Two dtypes."""
    inputs = [mine, mine[:2].float() * 3]
    outputs = [each.new_zeros(size * len(each)) for each in inputs]
    with dist._coalescing_manager(async_ops=call["asynchronous"]) as both:
        for output, each in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, each)
    both.wait()
    return outputs


def coalescing_reduce_scatter(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    inputs = [mine, mine * 3]
    outputs = [mine.new_zeros(len(mine) // size) for _ in inputs]
    with dist._coalescing_manager(async_ops=call["asynchronous"]) as both:
        for output, each in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, each)
    both.wait()
    return outputs


def monitored_barrier(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    dist.monitored_barrier()
    return [mine]


def around_the_ring(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Each rank sends to the next; the first sends first, so that not all wait."""
    received = torch.zeros_like(mine)
    if size == 1:
        return [mine]
    if rank == 0:
        dist.send(mine, 1)
    dist.recv(received, (rank - 1) % size)
    if rank > 0:
        dist.send(mine, (rank + 1) % size)
    return [received]


def tagged(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Two messages to the next rank, waited for there in the other order, and told apart by their tags."""
    following, before, received = (rank + 1) % size, (rank - 1) % size, [torch.zeros_like(mine) for _ in range(2)]
    if size == 1:
        return [mine, mine * 3]
    works = [dist.isend(mine, following, tag=1), dist.isend(mine * 3, following, tag=2)]
    works = [dist.irecv(received[1], before, tag=2), dist.irecv(received[0], before, tag=1), *works]
    for work in works:
        _wait(work)
    return received


def in_order(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """Two messages of one tag arrive in the order in which they were sent."""
    received = [torch.zeros_like(mine) for _ in range(2)]
    if rank == 0:
        for work in [dist.isend(mine * each, peer) for peer in range(1, size) for each in (1, 3)]:
            _wait(work)
    else:
        for tensor in received:
            dist.recv(tensor, 0)
    return received if rank else [mine, mine * 3]


def batched(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """To the next and from the one before, at once."""
    received = torch.zeros_like(mine)
    if size == 1:
        return [mine]
    messages = [
        dist.P2POp(dist.isend, mine, (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return [received]


def from_any(rank: int, size: int, mine: torch.Tensor, call: Call) -> Tensors:
    """All send to rank 0, which takes them as they come and is told who sent what."""
    if rank > 0:
        dist.send(mine, 0, tag=5)
    received = [torch.zeros_like(mine) for _ in range(size - 1)] if rank == 0 else []
    by_sender = {dist.recv(tensor, tag=5): tensor for tensor in received}
    dist.barrier()  # what is sent next is not for this
    if rank > 0:
        return []
    return [by_sender[sender] for sender in range(1, size)]


EXCHANGES: dict[str, Callable[[int, int, torch.Tensor, Call], Tensors]] = {
    command.__name__: command
    for command in (
        *(reduce_bits, premul_sum, gather, scatter, monitored_barrier),
        *(all_to_all, all_to_all_single, all_to_all_single_uneven, all_to_all_uneven),
        *(all_gather_uneven, reduce_scatter_uneven, all_gather_coalesced),
        *(coalescing_all_reduce, coalescing_all_gather, coalescing_reduce_scatter),
        *(around_the_ring, tagged, in_order, batched, from_any),
    )
}
