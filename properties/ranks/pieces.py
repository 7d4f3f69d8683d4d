"""Assemble parameters and gradients of which each rank holds a piece under the same name, without help by a method.

The way in which a parameter is split is found by trial. The pieces of all ranks are concatenated in each possible way
until the result equals rank 0's initial values. If no way fits, an error says so.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

MOST_DIMENSIONS = 8
WHOLE = -1  # every rank has the full tensor
FLAT = -2  # pieces of the flattened tensor, the last one possibly padded


class Pieces:
    """The ways in which some parameters are split. The constructor is collective.

    ``wholes``: each parameter on this rank before wrapping. ``parameters``: the same after wrapping. ``group``: the
    ranks that train; None: all. Raises NotImplementedError, which refuses, for a parameter that cannot be assembled.
    """

    def __init__(
        self, names: Sequence[str], wholes: Sequence[torch.Tensor], parameters: Sequence[Any], group: Any = None
    ) -> None:
        self._group = group
        self._shapes = [whole.shape for whole in wholes]
        self._ways = [self._way(*each) for each in zip(names, wholes, parameters, strict=True)]

    def together(self, values: Sequence[Any]) -> list[torch.Tensor | None]:
        """The full tensor of each parameter or gradient. None if some rank has no piece of it.

        Collective for tensors that are split.
        """
        found = []
        for value, way, shape in zip(values, self._ways, self._shapes, strict=True):
            pieces = None if way == WHOLE else _gathered(value, self._group)
            whole = value if way == WHOLE else pieces and _laid(pieces, way, shape)
            found.append(whole)
        return found

    @property
    def cut(self) -> bool:
        """True if some parameter is split."""
        return any(way != WHOLE for way in self._ways)

    def _way(self, name: str, whole: torch.Tensor, parameter: torch.Tensor) -> int:
        first = whole.detach().clone()
        dist.broadcast(first, group=self._group, group_src=0)
        pieces = _gathered(parameter, self._group)
        assert pieces is not None
        if all(piece.shape == whole.shape for piece in pieces):
            return WHOLE
        for way in (*range(whole.dim()), FLAT):
            laid = _laid(pieces, way, whole.shape)
            if laid is not None and torch.equal(laid, first):
                return way
        shapes = ", ".join(str(tuple(piece.shape)) for piece in pieces)
        words = f"parameter {name} of shape {tuple(whole.shape)} is held in pieces of shapes {shapes}"
        raise NotImplementedError(f"{words}, which are not rank 0's values laid together; full_gradients() would tell")


def _laid(pieces: Sequence[torch.Tensor], way: int, shape: torch.Size) -> torch.Tensor | None:
    """The pieces concatenated in a way, or None if they do not fit."""
    if way == FLAT:
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        return flat[: shape.numel()].reshape(shape) if flat.numel() >= shape.numel() else None
    there = [piece for piece in pieces if piece.numel()]
    try:
        laid = torch.cat(there, way) if there else pieces[0]
    except (RuntimeError, IndexError):
        return None
    return laid if laid.shape == shape else None


def _gathered(value: torch.Tensor | None, group: Any) -> list[torch.Tensor] | None:
    """The value of every rank; None if one of them has none, not even an empty piece."""
    # 1 if there is a value, its number of dimensions, its shape
    told = torch.zeros(2 + MOST_DIMENSIONS, dtype=torch.int64)
    if value is not None:
        told[: 2 + value.dim()] = torch.tensor([1, value.dim(), *value.shape])
    all_told = [torch.empty_like(told) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_told, told, group=group)
    if not all(each[0] for each in all_told) or value is None:  # all ranks decide alike
        return None
    shapes = [torch.Size(each[2 : 2 + int(each[1])].tolist()) for each in all_told]
    row = value.new_zeros(max(shape.numel() for shape in shapes))
    row[: value.numel()] = value.detach().reshape(-1)
    rows = [torch.empty_like(row) for _ in shapes]
    dist.all_gather(rows, row, group=group)
    return [each[: shape.numel()].reshape(shape) for each, shape in zip(rows, shapes, strict=True)]
