"""What ranks run in the tests of groups, of messages, and of what ranks must agree on."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from lockstep.worlds.tests.exchanges import data

Result = Mapping[str, Any]


def roots_of_a_subgroup(payload: str, rank: int, world_size: int) -> Result:
    """Ranks 1 and 3 communicate; a root is a global rank."""
    odd = dist.new_group([1, 3])
    if rank % 2 == 0:
        return {}
    if json.loads(payload)["disagree"]:
        dist.broadcast(data(rank, 2), src=rank, group=odd)
    dist.broadcast(data(rank, 2), src=3, group=odd)
    dist.reduce(data(rank, 2), dst=3, group=odd)
    dist.gather(data(rank, 2), [torch.zeros(2).double() for _ in range(2)] if rank == 3 else None, dst=3, group=odd)
    dist.scatter(data(rank, 2), [data(7, 2), data(8, 2)] if rank == 3 else None, src=3, group=odd)
    if rank == 1:
        dist.send(data(rank, 2), 3, group=odd)
        dist.recv(data(rank, 2), 3, group=odd)
    else:
        dist.recv(data(rank, 2), 1, group=odd)
        dist.send(data(rank, 2), 1, group=odd)
    return {}


def sending_first(payload: str, rank: int, world_size: int) -> Result:
    received = torch.zeros(2).double()
    dist.send(data(rank, 2), 1 - rank)
    dist.recv(received, 1 - rank)
    return {}


def receiving_what_nobody_sends(payload: str, rank: int, world_size: int) -> Result:
    dist.barrier()
    if rank == 0:
        dist.recv(data(rank, 2), 2, tag=4)
    if rank == 1:
        dist.recv(data(rank, 2))
    return {}


def messages_that_differ(payload: str, rank: int, world_size: int) -> Result:
    """The rank ``first`` is at its end of the message before the other."""
    asked = json.loads(payload)
    token = torch.zeros(1)
    if rank != asked["first"]:
        dist.recv(token, asked["first"], tag=9)
    if rank == 0:
        work = dist.isend(data(rank, 2), 1)
    else:
        tensor = torch.zeros(3).double() if asked["what"] == "count" else torch.zeros(2).long()
        work = dist.irecv(tensor, 0)
    if rank == asked["first"]:
        dist.send(token, 1 - rank, tag=9)
    assert work is not None
    work.wait()
    return {}


def dropping_the_handle_of_a_send(payload: str, rank: int, world_size: int) -> Result:
    received = torch.zeros(2).double()
    if rank == 0:
        dist.isend(data(rank, 2), 1)
    dist.barrier()
    if rank == 1:
        dist.recv(received, 0)
    return {"received": received.numpy()}


def looking_at_messages_that_are_there(payload: str, rank: int, world_size: int) -> Result:
    """Whether each is known to be done before anybody waits for it, and what has come."""
    received, answer = torch.zeros(2).double(), torch.zeros(1)
    works = [dist.isend(data(rank, 2), 1 - rank), dist.irecv(received, 1 - rank)]
    both = [dist.isend(answer, 1 - rank, tag=1), dist.irecv(torch.zeros(1), 1 - rank, tag=1)]
    for work in both:
        work.wait()
    known = [work.is_completed() for work in works]
    for work in works:
        work.wait()
    return {"known": known, "received": received.numpy()}


def waiting_twice_for_a_message(payload: str, rank: int, world_size: int) -> Result:
    """At both ends."""
    message = torch.full((1,), float(rank))
    work = dist.isend(message, 1) if rank == 0 else dist.irecv(message, 0)
    return {"done": [work.wait(), work.wait()], "received": message.item()}


def shapes_that_differ(payload: str, rank: int, world_size: int) -> Result:
    """Two rows of three on rank 0, three rows of two on rank 1, in every collective that compares counts alone."""
    mine = (torch.arange(6.0) + 10 * rank).reshape(2 + rank, 3 - rank)
    summed, cast, reduced = mine.clone(), mine.clone(), mine.clone()
    dist.all_reduce(summed)
    dist.broadcast(cast, src=0)
    dist.reduce(reduced, dst=0)
    lists = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(lists, mine)
    scattered = torch.zeros_like(mine)
    dist.scatter(scattered, [mine, mine * 3] if rank == 0 else None, src=0)
    if rank == 1:
        scattered = (scattered / 3).round()
    received = torch.zeros_like(mine)
    if rank == 0:
        dist.send(mine, 1)
        received = mine
    else:
        dist.recv(received, 0)
    found = {"summed": summed, "cast": cast, "first": lists[0], "second": lists[1]}
    return {name: each.numpy() for name, each in (found | {"scattered": scattered, "received": received}).items()}


def _gather(parts: list[torch.Tensor], rank: int) -> None:
    dist.gather(torch.zeros(2, 2), parts if rank == 1 else None, dst=1)


def _wrong() -> dict[str, Callable[[], Any]]:
    """What no backend could carry out, by name, on rank 1 of two."""
    four, sixteen = torch.zeros(4), torch.zeros(16)
    return {
        "a list that is too short": lambda: dist.all_gather([torch.zeros(4)], four),
        "an output that is too small": lambda: dist.all_gather_into_tensor(torch.zeros(7), four),
        "an output of another dtype": lambda: dist.distributed_c10d._get_default_group()._allgather_base(
            torch.zeros(8).double(), four
        ),
        "a scatter of elements that cannot be shared": lambda: dist.reduce_scatter_tensor(four[:2], sixteen[:5]),
        "a gather of unequal parts": lambda: dist.gather(four, [torch.zeros(4), torch.zeros(5)], dst=1),
        "a gather into another shape": lambda: _gather([torch.zeros(4), torch.zeros(4)], 1),
        "an output for itself of another size": lambda: dist.all_gather([torch.zeros(5), torch.zeros(3)], four),
        "an all_to_all of rows that cannot be shared": lambda: dist.all_to_all_single(torch.zeros(5), torch.zeros(5)),
        "splits that do not add up": lambda: dist.all_to_all_single(four, torch.zeros(4), [2, 2], [1, 2]),
        "bits of floats": lambda: dist.all_reduce(four, dist.ReduceOp.BXOR),
        "an average of bool": lambda: dist.all_reduce(four.bool(), dist.ReduceOp.AVG),
        "a message that is not contiguous": lambda: dist.send(torch.zeros(3, 2).t(), 0),
    }


def handing_over_the_wrong(payload: str, rank: int, world_size: int) -> Result:
    asked = json.loads(payload)
    if rank == asked["on"]:
        _wrong()[asked["what"]]()
    dist.barrier()
    return {}


def gathering_into_one_tensor(payload: str, rank: int, world_size: int) -> Result:
    output = torch.zeros(2 * world_size).double()
    dist.gather_single(data(rank, 2), output if rank == 1 else None, dst=1)
    return {"output": output.numpy()}


GROUPS = ([0, 1, 2, 3], [1, 2, 3], [2], [0, 3], [1, 3], [2, 3])


def subgroups(payload: str, rank: int, world_size: int) -> Result:
    """Every kind of collective on groups without rank 0, of one rank, and that overlap; whether all is as meant."""
    found = {}
    groups = [dist.new_group(members) for members in GROUPS]
    for members, group in zip(GROUPS, groups, strict=True):
        if rank not in members:
            continue
        size, last, mine = len(members), members[-1], data(rank, 2 * len(members))
        by_member, me = torch.stack([data(member, 2 * size) for member in members]), members.index(rank)
        summed, cast, part, moved = mine.clone(), mine.clone(), mine.new_zeros(2), torch.zeros_like(mine)
        works = [dist.all_reduce(summed, group=group, async_op=True)]
        dist.broadcast(cast, src=last, group=group)
        parts = list(mine.chunk(size)) if rank == last else None
        works += [dist.scatter(part, parts, src=last, group=group, async_op=True)]
        dist.all_to_all_single(moved, mine, group=group)
        gathered = [torch.zeros_like(mine) for _ in members]
        dist.gather(mine, gathered if rank == last else None, dst=last, group=group)
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, rank, group=group)
        for work in works:
            work.wait()
        received = mine.new_zeros(2)
        if size > 1:
            messages = [
                dist.P2POp(dist.isend, data(rank, 2), members[(me + 1) % size], group),
                dist.P2POp(dist.irecv, received, members[me - 1], group),
            ]
            for work in dist.batch_isend_irecv(messages):
                work.wait()
        dist.monitored_barrier(group)
        chunks = [row.chunk(size)[me] for row in by_member]
        name = ",".join(map(str, members))
        found[f"{name} summed"] = torch.equal(summed, by_member.sum(0))
        found[f"{name} cast"] = torch.equal(cast, by_member[-1])
        found[f"{name} part"] = torch.equal(part, chunks[-1])
        found[f"{name} moved"] = torch.equal(moved, torch.cat(chunks))
        found[f"{name} gathered"] = rank != last or torch.equal(torch.stack(gathered), by_member)
        found[f"{name} everyone"] = everyone == members
        found[f"{name} received"] = size == 1 or torch.equal(received, data(members[me - 1], 2))
    return found


def backends_by_name(payload: str, rank: int, world_size: int) -> Result:
    """A group that is asked for by a backend's name is the world's own; both say that they are gloo."""
    group = dist.new_group([1, 2, 3], backend="gloo")
    if rank == 0:
        return {"default": dist.get_backend() == "gloo"}
    summed = data(rank, 2)
    dist.all_reduce(summed, group=group)
    return {
        "default": dist.get_backend() == "gloo",
        "group": dist.get_backend(group) == "gloo",
        "same kind": type(group) is type(dist.group.WORLD),
        "summed": torch.equal(summed, data(1, 2) + data(2, 2) + data(3, 2)),
    }


def coalescing_with_a_device(payload: str, rank: int, world_size: int) -> Result:
    """As programs for nccl write it: whatever is launched inside ends with the manager."""
    received, summed = torch.zeros(2).double(), data(rank, 2)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as all_of_them:
        dist.isend(data(rank, 2), (rank + 1) % world_size)
        dist.irecv(received, (rank - 1) % world_size)
        dist.broadcast(summed, src=2, async_op=True)
    all_of_them.wait()
    return {
        "received": torch.equal(received, data((rank - 1) % world_size, 2)),
        "cast": torch.equal(summed, data(2, 2)),
    }
