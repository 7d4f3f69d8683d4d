"""A process group that describes each call: c10d's many methods in one small vocabulary.

`DescribedGroup` is a `torch.distributed.ProcessGroup`, so all code written against `torch.distributed` reaches it
unmodified, C++ included (DDP's reducer, functional collectives). Each method names its collective, its inputs and its
outputs, and leaves the rest to `launch`, or, for sends and receives, to `exchange`. The simulated world carries them
out itself; gloo's group hands the same call on. torch 2.11 to 2.14 name some methods differently; all names are here.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lockstep.worlds.coalesced import Together
from lockstep.worlds.contract import Array, Collective
from lockstep.worlds.signatures import overloaded

Tensors = Sequence[torch.Tensor]
Again = Callable[[Any], Any]

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.PREMUL_SUM: "premul_sum",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


_collective = functools.lru_cache(maxsize=1000)(Collective)  # ranks and steps ask for the same ones again


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def reduction_name(operation: Any) -> str:
    """The vocabulary's word for a `torch.distributed.ReduceOp`."""
    if operation == dist.ReduceOp.SUM:  # nearly always, and sooner known than looked up
        return "sum"
    try:
        return _REDUCTIONS[operation.op]
    except KeyError:
        raise NotImplementedError(f"Lockstep's worlds know no reduction {operation}") from None


_NOTHING = torch.empty(0)


def flatten(tensors: Tensors) -> torch.Tensor:
    """A copy of the tensors' elements, end to end; of a sparse tensor one that is sparse."""
    if len(tensors) == 1:
        tensor = tensors[0].detach()
        if tensor.is_sparse:
            return tensor.clone().coalesce()
        return tensor.clone() if tensor.dim() == 1 else tensor.flatten().clone()  # buckets are flat
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else _NOTHING


class Lying(list[torch.Tensor]):
    """Tensors that a backend reads or writes as they lie in memory, whatever their strides say; NCCL refuses gaps."""


def as_it_lies(call: Collective, tensors: Tensors) -> Tensors:
    """Of tensors that are `Lying`, the elements where a backend looks for them: so many, from the first on.

    Raises RuntimeError where an expanded tensor's memory holds fewer.
    """
    if not isinstance(tensors, Lying) or all(map(torch.Tensor.is_contiguous, tensors)):
        return tensors
    for tensor in tensors:
        held = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
        if held < tensor.numel():
            words = f"{tensor.numel()} elements of an expanded tensor, in memory of {held}"
            raise RuntimeError(f"{call}: {words}, beyond which gloo would read and write")
    return [tensor.detach().as_strided((tensor.numel(),), (1,)) for tensor in tensors]


def check_contiguous(call: Collective, tensor: torch.Tensor) -> None:
    """Raises RuntimeError where a backend would refuse a tensor: one that all_to_all_single or a message sends."""
    if not tensor.is_contiguous():
        raise RuntimeError(f"{call}: the tensor must be contiguous, its strides are {tuple(tensor.stride())}")


def in_numpy(flat: torch.Tensor) -> Array:
    """The same values in NumPy, which has neither bfloat16 nor float8: float32 holds each of their values. Those of a
    sparse tensor with the zeros between.
    """
    flat = flat.to_dense().flatten() if flat.is_sparse else flat
    array: Array = (flat.float() if flat.is_floating_point() and flat.itemsize < 4 else flat).cpu().numpy()
    return array if flat.dtype is not torch.float16 else array.astype("float16")


def _uneven(parts: Tensors, count: int, members: int) -> tuple[int, ...]:
    """The parts' sizes, or nothing where there is one of ``count`` elements for each member."""
    sizes = tuple(part.numel() for part in parts)
    return () if sizes == (count,) * members else sizes


def _rows(whole: torch.Tensor, splits: Sequence[int], members: int) -> tuple[int, ...]:
    """The elements of ``whole`` for each member: dimension 0, cut by ``splits`` or evenly. Raises RuntimeError."""
    length = whole.shape[0] if whole.dim() else 1
    if not splits and length % members:
        raise RuntimeError(
            f"all_to_all_single divides dimension 0 between {members} ranks, got {length}; say the splits"
        )
    rows = list(splits) or [length // members] * members
    if len(rows) != members or sum(rows) != length:
        raise RuntimeError(f"the splits {rows} must be {members} numbers that add up to dimension 0, which is {length}")
    return tuple(row * (whole.numel() // length) if length else 0 for row in rows)


class DescribedGroup(dist.ProcessGroup):
    """A process group whose every collective goes through one method. ``members``: global ranks, by rank in it."""

    def __init__(self, rank: int, members: tuple[int, ...], label: str) -> None:
        super().__init__(rank, len(members))
        self.member, self.members, self.global_rank, self.label = rank, members, members[rank], label
        self._name = ""
        self.issued = 0  # collectives so far

    def __repr__(self) -> str:
        return f"<group of global rank{'s' * (len(self.members) > 1)} {', '.join(map(str, self.members))}>"

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        """The name that C++ shows."""
        return "lockstep"

    @property
    def group_name(self) -> str:
        """The name under which c10d knows this group, or has known it: it asks once more when it has forgotten it."""
        self._name = c10d._world.pg_names.get(self, self._name)
        return self._name

    def _get_sequence_number_for_group(self) -> int:
        return self.issued

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Again) -> dist.Work:
        """Starts a collective. ``again(group)`` makes the same call on another process group."""
        raise NotImplementedError

    def exchange(self, call: Collective, tensors: Tensors, again: Again) -> dist.Work:
        """Starts a send or a receive of one tensor."""
        raise NotImplementedError

    def recorded(self) -> int:
        """The number of collectives, sends and receives that this rank has called so far, in all groups."""
        raise NotImplementedError

    def now(self) -> int:
        """The time on the clock of a `worlds.contract.Passage`, which all ranks of the example share."""
        return time.perf_counter_ns()

    def _describe(
        self,
        operation: str,
        tensors: Tensors,
        reduction: Any = None,
        root: int = -1,
        gives: tuple[int, ...] = (),
        takes: tuple[int, ...] = (),
    ) -> Collective:
        dtype = _dtype_name(tensors[0].dtype) if tensors else ""
        count = tensors[0].numel() if len(tensors) == 1 else sum(tensor.numel() for tensor in tensors)
        named = "" if reduction is None else reduction_name(reduction)
        if tensors and tensors[0].is_sparse:  # all members give such a one, of one shape, and in as many dimensions
            shape, given = "x".join(map(str, tensors[0].shape)), tensors[0].sparse_dim()
            named = f"sparse {named}".strip() + f" of {shape}, {given} of {tensors[0].dim()} dimensions"
        root = self.members[root] if root >= 0 else -1
        return _collective(operation, named, dtype, count, root, self.label, gives, takes)

    @overloaded(dist.AllreduceOptions, "op", "timeout")
    def allreduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """all_reduce, in place, of a sparse tensor too."""
        call = self._describe("all_reduce", tensors, opts.reduceOp)
        lying = tensors if any(tensor.is_sparse for tensor in tensors) else Lying(tensors)
        inputs = _scaled(call, lying, opts)
        return self.launch(call, inputs, lying, lambda group: group.allreduce(tensors, opts))

    @overloaded(dist.AllreduceCoalescedOptions)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> dist.Work:
        """all_reduce of several tensors at once, in place. Raises NotImplementedError for sparse ones, as torch."""
        if any(tensor.is_sparse for tensor in tensors):
            raise NotImplementedError("sparse tensors cannot be coalesced")
        if len({tensor.dtype for tensor in tensors}) > 1:
            raise RuntimeError(f"coalesced tensors must have one dtype, got {[tensor.dtype for tensor in tensors]}")
        call = self._describe("all_reduce", tensors, opts.reduceOp)
        inputs = _scaled(call, tensors, opts)
        return self.launch(call, inputs, tensors, lambda group: group.allreduce_coalesced(tensors, opts))

    @overloaded(dist.BroadcastOptions, "root", "timeout")
    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        """The root's tensors, to all."""
        call, lying = self._describe("broadcast", tensors, root=opts.rootRank), Lying(tensors)
        return self.launch(call, lying, lying, lambda group: group.broadcast(tensors, opts))

    @overloaded(dist.ReduceOptions, "root", "op", "timeout")
    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """The reduction, to the root; elsewhere the tensors stay or become undefined."""
        call, lying = self._describe("reduce", tensors, opts.reduceOp, opts.rootRank), Lying(tensors)
        inputs = _scaled(call, lying, opts)
        return self.launch(call, inputs, lying, lambda group: group.reduce(tensors, opts))

    @overloaded(c10d.AllgatherOptions, "timeout")
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """Everybody's tensor, as a list, to all. Not all need be of one size."""
        takes = _uneven(outputs[0], inputs[0].numel(), len(self.members))
        call = self._describe("all_gather", inputs, takes=takes)
        return self.launch(call, inputs, outputs[0], lambda group: group.allgather(outputs, inputs, opts))

    @overloaded(c10d.AllgatherOptions)
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """Everybody's tensors: one list for each member."""
        call, written = self._describe("all_gather", inputs), [output for member in outputs for output in member]
        return self.launch(call, inputs, written, lambda group: group.allgather_coalesced(outputs, inputs, opts))

    @overloaded(c10d.AllgatherOptions)
    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> dist.Work:
        """Everybody's tensor, end to end, to all."""
        call = self._describe("all_gather", [source])
        return self.launch(call, [source], [output], lambda group: group._allgather_base(output, source, opts))

    _allgather_base = all_gather_single

    @overloaded(c10d.AllgatherOptions)
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        """Several of `all_gather_single`, which end together."""
        return Together([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @overloaded(dist.GatherOptions, "root", "timeout")
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """Everybody's tensor, as a list, to the root."""
        written = outputs[0] if outputs else []
        takes = _uneven(written, inputs[0].numel(), len(self.members)) if self.member == opts.rootRank else ()
        call = self._describe("gather", inputs, root=opts.rootRank, takes=takes)
        return self.launch(call, inputs, written, lambda group: group.gather(outputs, inputs, opts))

    @overloaded(dist.GatherOptions)
    def gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> dist.Work:
        """Everybody's tensor, end to end, to the root."""
        call, written = self._describe("gather", [source], root=opts.rootRank), [output]
        if self.member != opts.rootRank:
            written = []
        return self.launch(call, [source], written, lambda group: group.gather_single(output, source, opts))

    gather_into_tensor = gather_single

    @overloaded(dist.ScatterOptions, "root", "timeout")
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        """The root's m-th tensor, to member m. What is counted is what a member gets."""
        parts = inputs[0] if inputs else []
        gives = _uneven(parts, outputs[0].numel(), len(self.members)) if self.member == opts.rootRank else ()
        call = self._describe("scatter", outputs, root=opts.rootRank, gives=gives)
        return self.launch(call, Lying(parts), Lying(outputs), lambda group: group.scatter(outputs, inputs, opts))

    @overloaded(dist.ReduceScatterOptions, "op", "timeout")
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        """The reduction of the m-th tensors, to member m. Not all need be of one size."""
        gives = _uneven(inputs[0], inputs[0][0].numel(), len(self.members))
        call = self._describe("reduce_scatter", inputs[0], opts.reduceOp, gives=gives)
        parts = Lying(inputs[0])
        if len(parts) == len(self.members):
            parts[self.member] = _copied(parts[self.member], outputs[0])
        given = _scaled(call, parts, opts)
        return self.launch(call, given, Lying(outputs), lambda group: group.reduce_scatter(outputs, inputs, opts))

    @overloaded(dist.ReduceScatterOptions)
    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> dist.Work:
        """The reduction's m-th equal part, to member m."""
        call = self._describe("reduce_scatter", [source], opts.reduceOp)
        inputs = _scaled(call, [source], opts)
        return self.launch(call, inputs, [output], lambda group: group._reduce_scatter_base(output, source, opts))

    _reduce_scatter_base = reduce_scatter_single

    @overloaded(dist.ReduceScatterOptions)
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        """Several of `reduce_scatter_single`, which end together."""
        return Together([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @overloaded(c10d.AllToAllOptions, "timeout")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        """The n-th tensor of member m becomes the m-th of member n."""
        gives, takes = (tuple(tensor.numel() for tensor in tensors) for tensors in (inputs, outputs))
        call = self._describe("all_to_all", inputs, gives=gives, takes=takes)
        return self.launch(call, inputs, outputs, lambda group: group.alltoall(outputs, inputs, opts))

    @overloaded(c10d.AllToAllOptions, "timeout")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any,
    ) -> dist.Work:
        """The n-th part of member m's tensor becomes the m-th of member n's; parts are cut along dimension 0."""
        size = len(self.members)
        gives, takes = _rows(source, input_splits, size), _rows(output, output_splits, size)
        call = self._describe("all_to_all", [source], gives=gives, takes=takes)
        check_contiguous(call, source)
        return self.launch(
            call,
            [source],
            Lying([output]),
            lambda group: group.alltoall_base(output, source, output_splits, input_splits, opts),
        )

    alltoall_base = all_to_all_single

    @overloaded(c10d.BarrierOptions, "timeout")
    def barrier(self, opts: Any) -> dist.Work:
        """Nothing moves; nobody goes on before all are there."""
        call = self._describe("barrier", [])
        return self.launch(call, [], [], lambda group: group.barrier(opts))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names who does not come. Blocks."""
        call = self._describe("monitored_barrier", [])
        work = self.launch(call, [], [], lambda group: group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks))
        if work is not None:
            work.wait()

    def send(self, tensors: Tensors, dstRank: int, tag: int) -> dist.Work:  # noqa: N803, torch's name
        """A tensor, to a member."""
        call = self._message("send", tensors, dstRank, tag)
        return self.exchange(call, tensors, lambda group: group.send(tensors, dstRank, tag))

    def recv(self, tensors: Tensors, srcRank: int, tag: int) -> dist.Work:  # noqa: N803, torch's name
        """A tensor, from a member."""
        call = self._message("recv", tensors, srcRank, tag)
        return self.exchange(call, tensors, lambda group: group.recv(tensors, srcRank, tag))

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        """A tensor, from whichever member sends one first."""
        call = self._message("recv", tensors, -1, tag)
        return self.exchange(call, tensors, lambda group: group.recv_anysource(tensors, tag))

    def _message(self, operation: str, tensors: Tensors, peer: int, tag: int) -> Collective:
        (tensor,) = tensors
        root, dtype = self.members[peer] if peer >= 0 else -1, _dtype_name(tensor.dtype)
        return Collective(operation, "", dtype, tensor.numel(), root, self.label, tag=tag)


def _copied(part: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """A member's part for itself: gloo copies it to the output as tensors are copied, and reduces what lies there."""
    if part.shape != output.shape or (part.is_contiguous() and output.is_contiguous()):
        return part
    return output.detach().copy_(part.detach())


def _scaled(call: Collective, tensors: Tensors, opts: Any) -> Tensors:
    """The tensors to reduce: the factor of a premul-sum is each rank's own, and is applied before anything is sent."""
    if call.reduction != "premul_sum":
        return tensors
    _, factor = opts.reduceOp.__getstate__()
    return [tensor * factor for tensor in tensors]
