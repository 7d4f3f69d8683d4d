"""What ranks run in the tests of what is rare but right, or wrong as it is elsewhere."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._pytree import tree_map_only

Result = Mapping[str, Any]


def _memory(rank: int) -> torch.Tensor:
    return torch.arange(1.0, 17.0) + 100 * rank


LAYOUTS = {
    "every other": lambda memory, rank: memory[::2],
    "columns": lambda memory, rank: memory.view(4, 4)[:, :2],
    "transposed": lambda memory, rank: memory.view(2, 8).t(),
    "transposed on one rank": lambda memory, rank: memory.view(4, 4).t() if rank else memory.view(4, 4),
    "channels last on one rank": lambda memory, rank: (
        memory.view(1, 2, 2, 4).permute(0, 3, 1, 2) if rank else memory.view(1, 4, 2, 2)
    ),
}


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor + 1000 * member for member in range(dist.get_world_size())]


def _all_from_rank_1(tensor: torch.Tensor) -> None:
    rows, members, gives = len(tensor), range(dist.get_world_size()), dist.get_rank() == 1
    source = torch.cat([part.contiguous() for part in _parts(tensor)]) if gives else tensor.new_empty(0)
    source = source.view(-1, *tensor.shape[1:])
    takes = [rows if member == 1 else 0 for member in members]
    dist.all_to_all_single(tensor, source, takes, [rows if gives else 0 for _ in members])


OPERATIONS = {
    "all_reduce": lambda tensor: dist.all_reduce(tensor),
    "all_reduce_coalesced": lambda tensor: dist.all_reduce_coalesced([tensor]),
    "broadcast": lambda tensor: dist.broadcast(tensor, 1),
    "reduce": lambda tensor: dist.reduce(tensor, 1),
    "reduce_scatter": lambda tensor: dist.reduce_scatter(tensor, _parts(tensor)),
    "reduce_scatter of what is contiguous": lambda tensor: dist.reduce_scatter(
        tensor, [part.contiguous() for part in _parts(tensor)]
    ),
    "scatter": lambda tensor: dist.scatter(tensor, _parts(tensor) if dist.get_rank() == 1 else None, 1),
    "all_to_all_single": _all_from_rank_1,
}


def in_a_layout(payload: str, rank: int, world_size: int) -> Result:
    """Memory after a collective of a tensor in it."""
    operation, layout = payload.split(", ")
    memory = _memory(rank)
    OPERATIONS[operation](LAYOUTS[layout](memory, rank))
    return {"memory": memory.numpy()}


def reducing_to_one(payload: str, rank: int, world_size: int) -> Result:
    """What every rank holds afterwards; the payload has a number of elements, the root, and a function's name."""
    count, root, reduction = payload.split(", ")
    values = (torch.arange(int(count)) % 5 + 2.0 * rank + 1).double()
    dist.reduce(values, int(root), getattr(dist.ReduceOp, reduction))
    return {"values": values.numpy()}


def _WORLD() -> Any:  # noqa: N802, c10d's name
    return dist.group.WORLD


REFUSED = {
    "an unknown backend": lambda: dist.new_group(backend="nosuch"),
    "int16": lambda: dist.broadcast(torch.ones(1, dtype=torch.int16), 0),
    "no memory": lambda: dist.all_reduce(torch.ones(1, device="meta")),
    "bits of numbers": lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND),
    "too few outputs": lambda: dist.all_gather([torch.ones(1)], torch.ones(1)),
    "outputs too long": lambda: dist.all_gather([torch.ones(2)] * 2, torch.ones(1)),
    "no even parts": lambda: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(5)),
    "a root that is not there": lambda: dist.broadcast(torch.ones(1), 9),
    "float8 added up": lambda: dist.all_reduce(torch.ones(1).to(torch.float8_e4m3fn)),
    "complex numbers gathered": lambda: _WORLD().allgather([[torch.ones(1) * 1j] * 2], [torch.ones(1) * 1j]).wait(),
    "no tensor": lambda: dist.all_reduce_coalesced([]),
    "a tensor with gaps": lambda: dist.all_to_all_single(torch.ones(2), torch.ones(4)[::2]),
    "a number for two": lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)),
    "an expanded tensor": lambda: dist.all_reduce(torch.ones(1).expand(3)),  # by sim alone
}


def being_refused(payload: str, rank: int, world_size: int) -> Result:
    """What no backend does; the error goes on."""
    REFUSED[payload]()
    return {}


def looking_at_work(payload: str, rank: int, world_size: int) -> Result:
    """What a handle tells once it was waited for."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.wait()
    return {"result": [each.tolist() for each in work.result()], "completed": work.is_completed()}


def destroying_a_group(payload: str, rank: int, world_size: int) -> Result:
    """The others go on as if it had never been."""
    groups = [dist.new_group() for _ in range(2)]
    values = [torch.full((2,), float(rank + 1)) for _ in range(3)]
    dist.all_reduce(values[0], group=groups[0])
    dist.destroy_process_group(groups[0])
    dist.all_reduce(values[1], group=groups[1])
    dist.all_reduce(values[2])
    return {"values": torch.stack(values).numpy(), "groups": dist.get_pg_count()}


def beginning_again(payload: str, rank: int, world_size: int) -> Result:
    """Destroys the default group and makes another one, and a group of some of its ranks."""
    store = c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=world_size)
    values, some = torch.full((2,), float(rank + 1)), torch.ones(1)
    dist.all_reduce(values)
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(some, group=group)
    return {"values": values.numpy(), "some": some.numpy()}


def calling_the_group(payload: str, rank: int, world_size: int) -> Result:
    """Past `torch.distributed`, without options, as C++ code and some wrappers do."""
    group: Any = dist.group.WORLD
    mine, whole = torch.full((2,), float(rank)), torch.zeros(2 * world_size)
    gathered = [torch.zeros(2) for _ in range(world_size)]
    group.barrier().wait()
    group.allgather([gathered], [mine]).wait()
    group._allgather_base(whole, mine).wait()
    turned = torch.zeros(world_size)
    group.alltoall_base(turned, torch.arange(float(world_size)) + 10 * rank, [], []).wait()
    return {"gathered": torch.cat([*gathered, whole, turned]).numpy()}


def _plain_group(rank: int, size: int) -> Any:
    """A group as torch makes it, without Lockstep."""
    store, kind = dist.PrefixStore("plain", c10d._get_default_store()), dist.ProcessGroup.BackendType.GLOO
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    backend = dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=30))
    group._register_backend(torch.device("cpu"), kind, backend)
    return group


def calling_in_every_form(payload: str, rank: int, world_size: int) -> Result:
    """All that C++ overloads, on the group that the payload says: the world's, or a plain one."""
    group: Any = _WORLD() if payload == "world" else _plain_group(rank, world_size)
    seconds, largest, last = datetime.timedelta(seconds=9), dist.ReduceOp.MAX, world_size - 1
    from_last: dict[type, Any] = {}
    for options in (dist.BroadcastOptions, dist.GatherOptions, dist.ScatterOptions):
        from_last[options] = options()
        from_last[options].rootRank = last
    held: list[torch.Tensor] = []

    def new(count: int = 2) -> torch.Tensor:
        held.append(torch.arange(float(count)) + 10 * rank + len(held))
        return held[-1]

    def each() -> list[torch.Tensor]:
        return [new() for _ in range(world_size)]

    began, root = group._get_sequence_number_for_group(), rank == last
    works = [
        group.allreduce(new()),
        group.allreduce([new()]),
        group.allreduce([new()], largest),
        group.allreduce(new(), op=largest, timeout=seconds),
        group.allreduce(tensor=new(), op=dist.ReduceOp.SUM),
        group.allreduce(tensors=[new()], opts=dist.AllreduceOptions()),
        group.allreduce_coalesced([new(), new(3)]),
        group.broadcast(new(), last),
        group.broadcast(new(), root=last),
        group.broadcast([new()]),
        group.broadcast([new()], opts=from_last[dist.BroadcastOptions]),
        group.reduce(new() if root else torch.ones(2), last, largest, seconds),  # undefined elsewhere
        group.allgather(each(), new()),
        group.allgather([each()], [new()]),
        group.allgather(output_tensors=each(), input_tensor=new(), timeout=seconds),
        group._allgather_base(output=new(2 * world_size), input=new()),
        group.gather(each() if root else [], new(), last),
        group.gather([each()] if root else [], [new()], from_last[dist.GatherOptions]),
        group.scatter(new(), each() if root else [], last),
        group.scatter([new()], [each()] if root else [], from_last[dist.ScatterOptions]),
        group.reduce_scatter(new(), each(), largest),
        group.reduce_scatter([new()], [each()]),
        group._reduce_scatter_base(new(1), new(world_size)),
        group._reduce_scatter_base(outputTensor=new(1), inputTensor=new(world_size)),
        group.alltoall_base(new(world_size), new(world_size), [], [], timeout=seconds),
        group.alltoall_base(output=new(world_size), input=new(world_size), output_split_sizes=[], input_split_sizes=[]),
        group.barrier(timeout=seconds),
        group.barrier(dist.BarrierOptions()),
    ]
    for work in works:
        work.wait()
    counted = group._get_sequence_number_for_group() - began
    wrong = (
        lambda: group.broadcast(),
        lambda: group.allreduce(new(), root=1),
        lambda: group.barrier(seconds, seconds),
    )
    return {"held": torch.cat(held).numpy(), "counted": counted > 0, "refused": [_type_error(call) for call in wrong]}


def _type_error(call: Callable[[], object]) -> bool:
    try:
        call()
    except TypeError:
        return True
    return False


class _Wrapped(torch.Tensor):
    """A tensor without memory of its own: operations find that of another."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "_Wrapped":
        wrapped: _Wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(_Wrapped, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, _Wrapped, function(*args, **kwargs))


def reducing_wrapped(payload: str, rank: int, world_size: int) -> Result:
    """All-reduces of tensors whose memory no backend may touch: one still in flight, and one that has none."""
    flying = funcol.all_reduce(torch.full((2,), rank + 1.0), "sum", _WORLD())
    dist.all_reduce(flying)
    wrapped = _Wrapped(torch.full((2,), rank + 1.0))
    dist.all_reduce(wrapped)
    return {"flying": (flying + 0).tolist(), "wrapped": wrapped.inner.tolist()}


def counting_calls(payload: str, rank: int, world_size: int) -> Result:
    """What torch's own mode sees."""
    with CommDebugMode() as mode:
        dist.all_reduce(torch.ones(1))
    return {"count": mode.get_total_counts()}


def reading_the_expanded(payload: str, rank: int, world_size: int) -> Result:
    """Tensors of more elements than memory, which nobody writes."""
    source = torch.full((1,), rank + 1.0).expand(2 * world_size)
    parts, part = [torch.zeros(2 * world_size) for _ in range(world_size)], torch.zeros(2)
    whole = torch.zeros(2 * world_size**2)
    dist.all_gather(parts, source)
    dist.all_gather_into_tensor(whole, source)
    dist.reduce_scatter_tensor(part, source)
    return {"read": torch.cat([*parts, whole, part]).numpy()}


def making_a_group_last(payload: str, rank: int, world_size: int) -> Result:
    """Ranks end while others still connect to what they have made."""
    dist.new_group(list(range(world_size - 1)))
    return {}


class _CannotBeTold(Exception):
    def __str__(self) -> str:
        raise self.args[0]


def raising_the_unspeakable(payload: str, rank: int, world_size: int) -> Result:
    """An exception without a message, but another exception that the payload names, whose notes are none."""
    error = _CannotBeTold({"KeyError": KeyError, "SystemExit": SystemExit}[payload])
    error.__notes__ = 7  # type: ignore[assignment]
    raise error


def raising_with_objects(payload: str, rank: int, world_size: int) -> Result:
    """An error whose message and note have a group and an object in them, as Python prints them; and an address."""
    error = ValueError(f"{dist.group.WORLD} and {object()}, {_memory} in C++ at 0x10")
    error.add_note(f"with {object()}")
    raise error
