"""A case of the laws of kernels, as plain data: tensors with their place in memory, and the operation's arguments."""

import math
from dataclasses import dataclass
from typing import Any

from lockstep.oracle.short import Short


@dataclass(frozen=True, repr=False)
class Tensor(Short):
    """A tensor's place in memory.

    ``order``: its dimensions from the innermost one. ``steps``: the gap of each is ``steps`` - 1. ``offset``: elements
    from an address that is a multiple of 16 bytes. ``seed``: of its values.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    offset: int = 0
    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    seed: int = 0

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements; by default row-major without gaps."""
        order = self.order or tuple(reversed(range(len(self.shape))))
        strides, reach = [0] * len(self.shape), 1
        for place, dimension in enumerate(order):
            strides[dimension] = reach * (self.steps[place] if self.steps else 1)
            reach = strides[dimension] * max(self.shape[dimension], 1)
        return tuple(strides)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Tensor":
        """A tensor from its JSON data."""
        plain: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in data.items()}
        return Tensor(**plain)


@dataclass(frozen=True, repr=False)
class Case(Short):
    """A list of tensors, the kind of their values, and the arguments of an operation.

    ``bucket``: the bucket as a tensor.
    """

    tensors: tuple[Tensor, ...]
    kind: str = "distinct"
    bucket: Tensor = Tensor((0,))
    divisor: float = 1.0
    scale: float = 1.0
    coefficient: float | None = None

    @property
    def count(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.count for tensor in self.tensors)
