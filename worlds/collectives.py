"""A process group that knows what it is asked for: c10d's many methods, told in one small vocabulary.

`DescribedGroup` is a `torch.distributed.ProcessGroup`, so whatever is written against `torch.distributed` reaches it
unmodified, C++ included (DDP's reducer). Each method says which collective it is, which tensors go in and which come
out, and leaves the rest to `launch`: the simulated world carries it out itself, gloo's hands the same call on.
torch 2.11 to 2.14 name some methods differently; both names are here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worlds.contract import Array, Collective

Tensors = Sequence[torch.Tensor]

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
}


def reduction_name(operation: Any) -> str:
    """The vocabulary's word for a `torch.distributed.ReduceOp`."""
    for known, name in _REDUCTIONS.items():
        if operation == known:
            return name
    raise NotImplementedError(f"Lockstep's worlds know no reduction {operation}")


def flatten(tensors: Tensors) -> torch.Tensor:
    """A copy of the tensors' elements, end to end."""
    if len(tensors) == 1:
        return tensors[0].detach().flatten().clone()
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)


def to_numpy(flat: torch.Tensor) -> Array:
    """The same values in NumPy, which has no bfloat16: float32 holds each of its values."""
    array: Array = (flat.float() if flat.dtype is torch.bfloat16 else flat).cpu().numpy()
    return array


class DescribedGroup(dist.ProcessGroup):
    """A process group whose every collective goes through one method, `launch`."""

    def __init__(self, rank: int, size: int, label: str) -> None:
        super().__init__(rank, size)
        self.label = label

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        """What `torch.distributed.get_backend` shows."""
        return "lockstep"

    @property
    def group_name(self) -> str:
        """The name under which c10d knows this group."""
        name: str = dist.distributed_c10d._world.pg_names[self]
        return name

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Starts a collective. ``again(group)`` makes the same call on another process group."""
        raise NotImplementedError

    def _describe(self, operation: str, tensors: Tensors, reduction: Any = None, root: int = -1) -> Collective:
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        count = sum(tensor.numel() for tensor in tensors)
        return Collective(
            operation, "" if reduction is None else reduction_name(reduction), dtype, count, root, self.label
        )

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """all_reduce, in place."""
        call = self._describe("all_reduce", tensors, opts.reduceOp)
        return self.launch(call, tensors, tensors, lambda group: group.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """all_reduce of several tensors at once, in place."""
        call = self._describe("all_reduce", tensors, opts.reduceOp)
        return self.launch(call, tensors, tensors, lambda group: group.allreduce_coalesced(tensors, opts))

    def broadcast(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """The root's tensors, to all."""
        call = self._describe("broadcast", tensors, root=opts.rootRank)
        return self.launch(call, tensors, tensors, lambda group: group.broadcast(tensors, opts))

    def reduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """The reduction, to the root; elsewhere the tensors stay or become undefined."""
        call = self._describe("reduce", tensors, opts.reduceOp, opts.rootRank)
        return self.launch(call, tensors, tensors, lambda group: group.reduce(tensors, opts))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """Everybody's tensor, as a list, to all."""
        call = self._describe("all_gather", inputs)
        return self.launch(call, inputs, outputs[0], lambda group: group.allgather(outputs, inputs, opts))

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> dist.Work:
        """Everybody's tensor, end to end, to all."""
        call = self._describe("all_gather", [source])
        return self.launch(call, [source], [output], lambda group: group._allgather_base(output, source, opts))

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> dist.Work:
        """The reduction of the m-th tensors, to member m."""
        call = self._describe("reduce_scatter", inputs[0], opts.reduceOp)
        return self.launch(call, inputs[0], outputs, lambda group: group.reduce_scatter(outputs, inputs, opts))

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> dist.Work:
        """The reduction's m-th equal part, to member m."""
        call = self._describe("reduce_scatter", [source], opts.reduceOp)
        return self.launch(call, [source], [output], lambda group: group._reduce_scatter_base(output, source, opts))

    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts: Any = None) -> dist.Work:
        """Nothing moves; nobody goes on before all are there."""
        call = self._describe("barrier", [])
        return self.launch(call, [], [], lambda group: group.barrier(opts))
