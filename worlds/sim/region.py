"""The memory of a tensor, and a test if two tensors share any of it."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True)
class Region:
    """The bytes of a tensor, from ``first`` to before ``end`` of a storage, but for gaps that its strides leave."""

    tensor: torch.Tensor
    storage: int
    first: int
    end: int

    def overlaps(self, other: "Region") -> bool:
        """True if they have a byte in common."""
        if self.storage != other.storage or self.end <= other.first or other.end <= self.first:
            return False
        if self._dense and other._dense:
            return True
        return bool(np.intersect1d(self._bytes(), other._bytes()).size)

    @property
    def _dense(self) -> bool:
        return self.tensor.numel() * self.tensor.element_size() == self.end - self.first

    def _bytes(self) -> Any:
        places = np.array([self.tensor.storage_offset()])
        for length, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True):
            places = np.add.outer(places, np.arange(length) * stride).reshape(-1)
        size = self.tensor.element_size()
        return np.add.outer(places * size, np.arange(size)).reshape(-1)


def regions(tensors: Iterable[torch.Tensor]) -> list[Region]:
    """Of each tensor that has memory."""
    found = []
    for tensor in tensors:
        if tensor.numel() and tensor.layout is torch.strided:
            try:
                storage = tensor.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):  # a wrapper without memory of its own
                continue
            size, first = tensor.element_size(), tensor.storage_offset()
            last = first + sum(
                (length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            found.append(Region(tensor, storage, first * size, (last + 1) * size))
    return found


class Memory:
    """A weak reference to a tensor's memory; of a sparse tensor, which has it by reference, to the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._sparse = weakref.ref(tensor) if tensor.is_sparse else None
        if self._sparse is not None:
            return
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._dtype, self._shape, self._strides = tensor.dtype, tensor.shape, tensor.stride()
        self._offset = tensor.storage_offset()

    def held(self) -> bool:
        """True if somebody keeps it."""
        if self._sparse is not None:
            return self._sparse() is not None
        return not self._storage.expired()

    def tensor(self) -> torch.Tensor:
        """The tensor again, or another like it where the memory is gone."""
        if self._sparse is not None:
            found = self._sparse()
            return torch.empty(0) if found is None else found
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata) if self.held() else None
        if storage is None:
            return torch.empty(self._shape, dtype=self._dtype)
        return torch.empty(0, dtype=self._dtype).set_(storage, self._offset, self._shape, self._strides)
