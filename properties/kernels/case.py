"""A case of the laws of kernels, as plain data: tensors by their place in memory, and what is done to them."""

import math
from dataclasses import dataclass
from typing import Any

from lockstep.oracle.short import Short


@dataclass(frozen=True, repr=False)
class Tensor(Short):
    """A tensor's place in memory: ``order`` of its dimensions from the innermost, each with gaps of ``steps`` - 1.

    ``offset``: elements from an address that is a multiple of 16 bytes; ``seed``: of its values.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    offset: int = 0
    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    seed: int = 0

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements; row-major and without gaps where nothing else is said."""
        order = self.order or tuple(reversed(range(len(self.shape))))
        strides, reach = [0] * len(self.shape), 1
        for place, dimension in enumerate(order):
            strides[dimension] = reach * (self.steps[place] if self.steps else 1)
            reach = strides[dimension] * max(self.shape[dimension], 1)
        return tuple(strides)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Tensor":
        """The inverse."""
        plain: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in data.items()}
        return Tensor(**plain)


@dataclass(frozen=True, repr=False)
class Case(Short):
    """A list of tensors, the kind of their values, and what a law does to them. ``bucket``: dtype of the bucket."""

    tensors: tuple[Tensor, ...]
    kind: str = "distinct"
    bucket: Tensor = Tensor((0,))
    divisor: float = 1.0
    scale: float = 1.0
    coefficient: float | None = None

    @property
    def count(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.count for tensor in self.tensors)
