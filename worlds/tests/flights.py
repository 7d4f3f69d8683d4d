"""What ranks run in the tests of asynchrony: right ways to handle what is in flight, by name.

None may be flagged, whenever collectives read and write.
"""

import gc
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.tests.exchanges import data


def waiting_at_once(rank: int, size: int) -> torch.Tensor:
    values = data(rank, 4)
    dist.all_reduce(values)
    return values * 2


def waiting_much_later_in_any_order(rank: int, size: int) -> torch.Tensor:
    tensors = [data(rank, 2) + number for number in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    for number in (3, 0, 4, 1, 2):
        works[number].wait()
        tensors[number].mul_(2)
    return torch.cat(tensors)


def in_slices_of_one_buffer(rank: int, size: int) -> torch.Tensor:
    """Neighbours of what is in flight may be read and written."""
    buffer = data(rank, 6)
    first, second = buffer[:3], buffer[3:]
    work = dist.all_reduce(first, async_op=True)
    second.mul_(2)
    other = dist.all_reduce(second, async_op=True)
    work.wait()
    first.div_(2)
    other.wait()
    return buffer


def in_columns_of_one_matrix(rank: int, size: int) -> torch.Tensor:
    """Columns lie in each other's gaps. What is gathered is copied first; a reduction would take the gaps along."""
    matrix, gathered = data(rank, 6).reshape(3, 2), [torch.zeros(3).double() for _ in range(size)]
    work = dist.all_gather(gathered, matrix[:, 0], async_op=True)
    matrix[:, 1].mul_(3)
    work.wait()
    return torch.cat([*gathered, matrix.reshape(-1)])


def polling_until_it_is_done(rank: int, size: int) -> torch.Tensor:
    """Who has seen that a collective is complete need not wait for it."""
    values = data(rank, 2)
    work = dist.all_reduce(values, async_op=True)
    while not work.is_completed():
        pass
    return values * 2


def reading_what_is_only_read(rank: int, size: int) -> torch.Tensor:
    """An input may be read while it is in flight, and may go into two collectives."""
    source, one, two = data(rank, 2), torch.zeros(2 * size).double(), torch.zeros(2 * size).double()
    works = [dist.all_gather_into_tensor(output, source, async_op=True) for output in (one, two)]
    doubled = source * 2
    for work in works:
        work.wait()
    return torch.cat([one, two, doubled])


def making_more_of_the_same_shape(rank: int, size: int) -> torch.Tensor:
    """Shapes and views of an output may be looked at."""
    output = torch.zeros(size).double()
    work = dist.all_gather_into_tensor(output, data(rank, 1), async_op=True)
    more, view = torch.zeros_like(output), output.view(-1, 1).t()
    more += output.numel() + output.stride(0)
    work.wait()
    return more + view[0]


def through_futures(rank: int, size: int) -> torch.Tensor:
    values = data(rank, 2)
    doubled = dist.all_reduce(values, async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()
    return torch.cat([values, doubled])


def from_backward(rank: int, size: int) -> torch.Tensor:
    """Several in flight from hooks, waited for after backward."""
    parameters = [torch.ones(3, requires_grad=True) for _ in range(3)]
    works = []
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: works.append(dist.all_reduce(parameter.grad, async_op=True))
        )
    sum((parameter * (rank + number + 1)).sum() for number, parameter in enumerate(parameters)).backward()
    for work in works:
        work.wait()
    return torch.cat([parameter.grad for parameter in parameters])


def futures_from_backward(rank: int, size: int) -> torch.Tensor:
    """Launched in hooks, and waited for in the last of them."""
    parameters = [torch.ones(3, requires_grad=True) for _ in range(3)]
    futures = []

    def hook(parameter: torch.Tensor) -> None:
        futures.append(dist.all_reduce(parameter.grad, async_op=True).get_future())
        if len(futures) == len(parameters):
            torch.futures.wait_all(futures)
            for each in parameters:
                each.grad /= size

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    sum((parameter * (rank + number + 1)).sum() for number, parameter in enumerate(parameters)).backward()
    return torch.cat([parameter.grad for parameter in parameters])


class _Keeper:
    """Waits for the collective of one call at the next; nobody waits for the last."""

    def __init__(self) -> None:
        self.work: Any = None

    def call(self, rank: int) -> torch.Tensor:
        if self.work is not None:
            self.work.wait()
        self.values = data(rank, 2)
        self.work = dist.all_reduce(self.values, async_op=True)
        return torch.zeros(0)


def dropping_what_nobody_can_see(rank: int, size: int) -> torch.Tensor:
    """The handle goes, and the result with it."""
    dist.all_reduce(data(rank, 2), async_op=True)
    gathered = torch.zeros(size).double()
    dist.all_gather_into_tensor(gathered, gathered[rank : rank + 1], async_op=True)
    del gathered
    dist.barrier()
    return data(rank, 1)


def leaving_a_handle_to_the_collector_of_cycles(rank: int, size: int) -> torch.Tensor:
    """When it comes, nobody can say."""
    values = data(rank, 2)
    cycle: list[Any] = [dist.all_reduce(values, async_op=True)]
    cycle.append(cycle)
    del cycle
    gc.collect(1)  # it is young
    dist.barrier()
    return data(rank, 1)


def _ring(rank: int, size: int) -> tuple[int, int]:
    return (rank + 1) % size, (rank - 1) % size


def around_a_ring(rank: int, size: int) -> torch.Tensor:
    """What has come is sent on at the next turn, from the other of two buffers."""
    total, buffers, (right, left) = data(rank, 3), [data(rank, 3), torch.zeros(3).double()], _ring(rank, size)
    for turn in range(size - 1):
        sent = dist.isend(buffers[turn % 2], right)
        dist.recv(buffers[1 - turn % 2], left)
        total += buffers[1 - turn % 2]
        sent.wait()
    return total


def sending_one_tensor_to_all(rank: int, size: int) -> torch.Tensor:
    """It may be read meanwhile; receives are posted first, and waited for in another order."""
    mine, others = data(rank, 2), [peer for peer in range(size) if peer != rank]
    received = {peer: torch.zeros(2).double() for peer in others}
    receives = {peer: dist.irecv(received[peer], peer) for peer in others}
    sends = [dist.isend(mine, peer) for peer in others]
    doubled = mine * 2
    for peer in reversed(others):
        receives[peer].wait()
        received[peer] += 1
    for send in sends:
        send.wait()
    return torch.cat([doubled, mine.zero_(), *received.values()])


def in_batches_that_are_polled(rank: int, size: int) -> torch.Tensor:
    """Slices of one buffer: who has seen that a message is done need not wait for it."""
    buffer, (right, left) = data(rank, 4), _ring(rank, size)
    messages = [dist.P2POp(dist.irecv, buffer[2:], left), dist.P2POp(dist.isend, buffer[:2], right)]
    works = dist.batch_isend_irecv(messages)
    for work in works:
        while not work.is_completed():
            pass
    return buffer.mul_(2)


def coalescing_messages(rank: int, size: int) -> torch.Tensor:
    received, (right, left) = torch.zeros(2).double(), _ring(rank, size)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as both:
        dist.isend(data(rank, 2), right)
        dist.irecv(received, left)
    both.wait()
    return received * 2


def sending_what_was_received_from_any(rank: int, size: int) -> torch.Tensor:
    """All wait at once: rank 0 sends back what comes, to whom it came from."""
    mine = data(rank, 2)
    if rank:
        dist.send(mine, 0)
        dist.recv(mine, 0)
        return mine
    for _ in range(size - 1):
        sender = dist.recv(mine)
        mine *= 2
        dist.send(mine, sender)
    return torch.zeros(2)


def sending_objects(rank: int, size: int) -> torch.Tensor:
    received: list[Any] = [None]
    if rank == 0:
        for peer in range(1, size):
            dist.send_object_list([{"values": data(peer, 2)}], peer)
        return torch.zeros(2)
    dist.recv_object_list(received, 0)
    return torch.as_tensor(received[0]["values"])


def never_waiting_for_the_last(rank: int, size: int) -> torch.Tensor:
    """The keeper's handle goes when this function returns: nobody has dropped it before."""
    keeper = _Keeper()
    for _ in range(3):
        keeper.call(rank)
    return data(rank, 1)


RIGHT = {
    program.__name__: program
    for program in (
        *(waiting_at_once, waiting_much_later_in_any_order, in_slices_of_one_buffer, in_columns_of_one_matrix),
        *(polling_until_it_is_done, reading_what_is_only_read, making_more_of_the_same_shape),
        *(through_futures, from_backward, futures_from_backward, never_waiting_for_the_last),
        *(dropping_what_nobody_can_see, leaving_a_handle_to_the_collector_of_cycles),
        *(around_a_ring, sending_one_tensor_to_all, coalescing_messages),
        *(in_batches_that_are_polled, sending_what_was_received_from_any, sending_objects),
    )
}


def right(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: a name of ``RIGHT``."""
    return {"values": RIGHT[payload](rank, world_size).double().numpy()}
