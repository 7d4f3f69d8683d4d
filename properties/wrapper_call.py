"""One call of a wrapper of a collective: the inputs of ranks, and the expected results."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from lockstep.oracle import collectives
from lockstep.oracle.collectives import Array, on_group
from lockstep.oracle.formats import FORMATS
from lockstep.properties.exercise import Exercise

LAYOUTS = ("contiguous", "transposed", "columns")
AROUND = -1.0  # the elements between those of a tensor that is every other column of another
# The first number for a dtype, such that a narrower dtype cannot represent the odd ones.
FAR = {"float64": 2**25, "int64": 2**53}
# The count of different numbers in 16 bits, so that sums over MOST_RANKS stay exact.
KINDS = {"bfloat16": 7, "float16": 31}
MOST_RANKS = 5
SECOND = 500  # the first number of another call


@dataclass(frozen=True, repr=False)
class Call(Exercise):
    """A call.

    ``group``: global ranks in ascending order. ``root``: a global rank. ``rows``: those of one member's share.
    ``layout``: of each member's input: contiguous, the transpose of a contiguous tensor, or every other column of one.
    ``dimensions``: 0; 1, only rows; 2; or 3, where each column has two elements.
    """

    operation: str
    world_size: int
    group: tuple[int, ...]
    rows: int = 1
    columns: int = 1
    layout: str = LAYOUTS[0]
    reduction: str = "sum"
    root: int = 0
    dimensions: int = 2
    dtype: str = "float32"

    called: ClassVar[str] = "call"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each member's input."""
        rows = self.rows * len(self.group) if self.operation == "reduce_scatter" else self.rows
        return (rows, self.columns, 2)[: self.dimensions]

    def to_json(self, implementation: str, adjoint: bool) -> str:
        """The call as JSON for the ranks."""
        return json.dumps({"implementation": implementation, "adjoint": adjoint, "call": asdict(self)})

    def words(self) -> str:
        """The call in words."""
        of = {"broadcast": f" from rank {self.root}", "all_gather": ""}.get(self.operation, f" ({self.reduction})")
        among = _so_many(self.group) + " " + ", ".join(map(str, self.group))
        over = "all ranks" if len(self.group) == self.world_size else f"a group of {among}"
        size = "x".join(map(str, self.shape)) or "0-d"
        tensor = size + f" {self.dtype}" * (self.dtype != "float32") + " tensor"
        columns = f"{tensor} that is every other column of a larger one"
        laid_out = columns if self.layout == "columns" else f"{self.layout} {tensor}"
        ranks = range(self.world_size)
        return f"{len(ranks)} {_so_many(ranks)}: {self.operation}{of} over {over}, on a {laid_out}"


def _so_many(ranks: Sequence[int]) -> str:
    return "rank" if len(ranks) == 1 else "ranks"


def inputs(call: Call, start: int, shape: tuple[int, ...]) -> list[Array]:
    """The input of each global rank: integers, all different if the dtype has enough.

    They are multiples of the group's size, so that averages are integers.
    """
    numbers = np.arange(call.world_size * math.prod(shape)).reshape(call.world_size, *shape) + start
    if call.dtype in KINDS:
        numbers = numbers % KINDS[call.dtype] + 1
    numbers = len(call.group) * (numbers + FAR.get(call.dtype, 0))
    form = FORMATS.get(call.dtype)
    return [np.asarray(each).astype(call.dtype if form is None else form.numpy) for each in numbers]


def results(call: Call, start: int = 1) -> list[Array]:
    """The result of the call on each global rank, for inputs from ``start`` on.

    Ranks outside the group keep their inputs.
    """
    return on_group(lambda values: _results(call, values), inputs(call, start, call.shape), call.group)


def _results(call: Call, values: list[Array]) -> list[Array]:
    match call.operation:
        case "all_reduce":
            return collectives.all_reduce(values, call.reduction)
        case "broadcast":
            return collectives.broadcast(values, call.group.index(call.root))
        case "reduce_scatter":
            return collectives.reduce_scatter_tensor(values, call.reduction)
        case "all_gather":
            return collectives.all_gather_tensor(values)
        case unknown:
            raise ValueError(f"unknown operation {unknown!r}")


def weights(call: Call) -> list[Array]:
    """The weights of each global rank. The loss is the sum of weights times result, so backward begins with them."""
    return inputs(call, 1000, results(call)[call.group[0]].shape)


def adjoints(call: Call) -> list[Array]:
    """For each global rank, the gradient of the sum of the ranks' losses with respect to its input."""
    return on_group(lambda values: _adjoints(call, values), weights(call), call.group)


def _adjoints(call: Call, values: list[Array]) -> list[Array]:
    match call.operation:
        case "all_reduce":
            return collectives.all_reduce(values, call.reduction)
        case "broadcast":
            total = collectives.reduction(values)
            return [total if rank == call.root else np.zeros_like(total) for rank in call.group]
        case "reduce_scatter":
            gathered = collectives.all_gather_tensor(values)
            return [collectives.finish(call.reduction, total, len(values)) for total in gathered]
        case "all_gather":
            return collectives.reduce_scatter_tensor(values)
        case unknown:
            raise ValueError(f"unknown operation {unknown!r}")
