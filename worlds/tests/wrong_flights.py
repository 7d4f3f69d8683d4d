"""What ranks run in the tests of asynchrony, wrongly: each is flagged as its name says.

The lines with a comment are those that the tests look for.
"""

import gc
import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.tests.exchanges import data


def changed_by_an_operation(rank: int, size: int) -> None:
    values = data(rank, 2)
    work = dist.all_reduce(values, async_op=True)  # launched
    values.div_(size)  # here
    work.wait()


def changed_past_torch(rank: int, size: int) -> None:
    values = data(rank, 2)
    work = dist.all_reduce(values, async_op=True)  # launched
    values.numpy()[0] = -1.0
    work.wait()


def changed_where_it_is_only_read(rank: int, size: int) -> None:
    source, output = data(rank, 2), torch.zeros(2 * size).double()
    work = dist.all_gather_into_tensor(output, source, async_op=True)  # launched
    source.zero_()  # here
    work.wait()


def used_where_it_was_reduced(rank: int, size: int) -> None:
    values = data(rank, 2)
    work = dist.all_reduce(values, async_op=True)  # launched
    values * 2  # here
    work.wait()


def used_in_a_list(rank: int, size: int) -> None:
    outputs = [torch.zeros(2).double() for _ in range(size)]
    work = dist.all_gather(outputs, data(rank, 2), async_op=True)  # launched
    torch.cat([data(rank, 1), outputs[0][1:]])  # here
    work.wait()


def used_in_backward(rank: int, size: int) -> None:
    weight = torch.zeros(2).double().requires_grad_()
    factor = torch.ones(2).double().requires_grad_()
    loss = (weight * factor).sum()
    work = dist.all_reduce(weight.detach(), async_op=True)  # launched
    loss.backward()  # here
    work.wait()


def shared_with_another_collective(rank: int, size: int) -> None:
    values = data(rank, 2)
    works = [
        dist.all_reduce(values, async_op=True),  # launched
        dist.broadcast(values[:1], src=0, async_op=True),  # here
    ]
    for work in works:
        work.wait()


def dropped(rank: int, size: int) -> torch.Tensor:
    values = data(rank, 2)
    dist.all_reduce(values, async_op=True)  # launched, here
    return values


def dropped_while_another_thread_collects_cycles(rank: int, size: int) -> torch.Tensor:
    """Finalizers, and the collector's callbacks, let other threads run meanwhile."""
    begun, end, values = threading.Event(), threading.Event(), data(rank, 2)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            begun.set()
            end.wait()

    def collect() -> None:
        Cycle()
        gc.collect(1)  # it is young

    collecting = threading.Thread(target=collect)
    collecting.start()
    begun.wait()
    dist.all_reduce(values, async_op=True)  # launched, here
    end.set()
    collecting.join()
    return values


def dropped_when_it_is_replaced(rank: int, size: int) -> torch.Tensor:
    both = data(rank, 2)
    work = dist.all_reduce(both[:1], async_op=True)  # launched
    work = dist.all_reduce(both[1:], async_op=True)  # here
    work.wait()
    return both


def changed_while_it_is_sent(rank: int, size: int) -> None:
    values, received = data(rank, 2), torch.zeros(2).double()
    work = dist.isend(values, 1 - rank)  # launched
    values.div_(size)  # here
    dist.recv(received, 1 - rank)
    work.wait()


def changed_past_torch_while_it_is_received(rank: int, size: int) -> None:
    received = torch.zeros(2).double()
    work = dist.irecv(received, 1 - rank)  # launched
    received.numpy()[0] = -1.0
    dist.send(data(rank, 2), 1 - rank)
    work.wait()


def used_before_it_was_received(rank: int, size: int) -> None:
    received = torch.zeros(2).double()
    messages = [dist.P2POp(dist.irecv, received, 1 - rank), dist.P2POp(dist.isend, data(rank, 2), 1 - rank)]
    works = dist.batch_isend_irecv(messages)  # launched
    received * 2  # here
    for work in works:
        work.wait()


def shared_by_two_messages(rank: int, size: int) -> None:
    values = data(rank, 2)
    work = dist.isend(values, 1 - rank)  # launched
    dist.recv(values, 1 - rank)  # here
    work.wait()


def dropped_while_it_is_sent(rank: int, size: int) -> torch.Tensor:
    values, received = data(rank, 2), torch.zeros(2).double()
    dist.isend(values, 1 - rank)  # launched, here
    dist.recv(received, 1 - rank)
    return values


def dropped_with_its_tensor(rank: int, size: int) -> None:
    """Nobody receives yet: gloo sends it no more."""
    dist.isend(data(rank, 2), 1 - rank)  # launched, here
    dist.barrier()
    dist.recv(torch.zeros(2).double(), 1 - rank)


WRONG = {
    program.__name__: program
    for program in (
        *(changed_by_an_operation, changed_past_torch, changed_where_it_is_only_read),
        *(used_where_it_was_reduced, used_in_a_list, used_in_backward),
        *(shared_with_another_collective, dropped, dropped_when_it_is_replaced),
        dropped_while_another_thread_collects_cycles,
        *(changed_while_it_is_sent, changed_past_torch_while_it_is_received, used_before_it_was_received),
        *(shared_by_two_messages, dropped_while_it_is_sent, dropped_with_its_tensor),
    )
}


def wrong(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: a name of ``WRONG``."""
    kept = WRONG[payload](rank, world_size)
    dist.barrier()
    return {"kept": kept is not None}
