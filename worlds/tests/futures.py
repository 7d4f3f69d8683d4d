"""Futures of collectives that ranks ask in Python, in the tests that they may."""

import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.tests.flights import futures_from_backward

Result = Mapping[str, Any]


def _looking_in_a_hook(rank: int, size: int) -> object:
    parameter = torch.ones(2, requires_grad=True)

    def hook(parameter: torch.Tensor) -> None:
        future = dist.all_reduce(parameter.grad, async_op=True).get_future()
        while not future.done():
            pass
        parameter.grad *= 2

    parameter.register_post_accumulate_grad_hook(hook)
    (parameter * (rank + 1)).sum().backward()
    return parameter.grad.tolist()


def _across_groups(rank: int, size: int) -> object:
    """Odd ranks launch in the opposite order; the groups are two, so that they may."""
    groups, values = [dist.new_group(list(range(size))) for _ in range(2)], [torch.ones(1), torch.ones(1) * 2]
    futures: dict[int, Any] = {}
    for place in (0, 1) if rank % 2 else (1, 0):
        futures[place] = dist.all_reduce(values[place], group=groups[place], async_op=True).get_future()
    return [outputs[0].item() for outputs in torch.futures.wait_all([futures[0], futures[1]])]


def _what_follows(rank: int, size: int) -> object:
    """Futures of futures: by `then`, by `collect_all`, and one that a callback completes."""

    def launch() -> Any:
        return dist.all_reduce(torch.ones(2) * (rank + 1), async_op=True).get_future()

    def again(done: Any) -> Any:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    all_of_them = torch.futures.collect_all([launch().then(lambda done: done.value()[0] + 1) for _ in range(3)])
    sums = all_of_them.then(lambda done: [each.value().tolist() for each in done.value()])
    while not sums.done():
        pass
    own: Any = torch.futures.Future()
    launch().add_done_callback(lambda done: own.set_result(done.value()[0].tolist()))
    return [sums.value(), launch().then(again).wait().tolist(), own.wait()]


def _keeping_what_follows(rank: int, size: int) -> object:
    """It does not keep the tensors. A thread of gloo's holds them until a moment after it has completed the future."""
    values = torch.ones(2)
    followed = dist.all_reduce(values, async_op=True).get_future().then(lambda done: None)
    followed.wait()
    there, deadline = weakref.ref(values), time.monotonic() + 5
    del values
    while there() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    return there() is None


FUTURES = {
    "waiting in a hook": lambda rank, size: futures_from_backward(rank, size).tolist(),
    "looking in a hook": _looking_in_a_hook,
    "across groups": _across_groups,
    "what follows": _what_follows,
    "keeping what follows": _keeping_what_follows,
}


def asking_futures(payload: str, rank: int, world_size: int) -> Result:
    """What one of them comes to."""
    return {"values": FUTURES[payload](rank, world_size)}


def waiting_for_one_future(payload: str, rank: int, world_size: int) -> Result:
    """Of two, through what follows it: both outputs then."""
    values = [torch.ones(1), torch.ones(1)]
    futures = [dist.all_reduce(each, async_op=True).get_future().then(lambda done: done.value()[0]) for each in values]
    futures[1].wait()
    return {"values": [each.item() for each in values]}
