"""Tensors in memory that is poisoned around and between their elements, so that a stray read or write shows.

Around a source, all bits are set, which is NaN in every floating dtype. The elements of a destination are set in the
same way before a kernel runs. The memory around those has a pattern, so that poison copied there shows too.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.properties.kernels.case import Tensor

GUARD = 64  # elements on either side


class Placed:
    """A case's tensor in memory of its own. ``tensor``: the argument of a kernel."""

    def __init__(self, spec: Tensor, values: NDArray[Any] | None, device: str) -> None:
        dtype = getattr(torch, spec.dtype)
        reach = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))
        length = 2 * GUARD + spec.offset + (reach if spec.count else 0)
        self._memory = torch.full((length * dtype.itemsize,), 255, dtype=torch.uint8, device=device)
        if values is None:
            self._memory.copy_(torch.arange(len(self._memory), device=device) * 89 % 251)
        self._place = (spec.shape, spec.strides, GUARD + spec.offset)
        self.tensor = self._memory.view(dtype).as_strided(*self._place)
        if spec.count:
            poison = np.full(spec.count * dtype.itemsize, 255, np.uint8)
            words = torch.from_numpy(poison if values is None else np.array(values).view(np.uint8)).to(device)
            self.tensor.copy_(words.view(dtype).view(spec.shape))
        self._before = self._memory.clone()

    def bits(self) -> NDArray[np.uint8]:
        """The elements in row-major order, as bytes."""
        flat = torch.empty(self.tensor.numel(), dtype=self.tensor.dtype)
        flat.view(self.tensor.shape).copy_(self.tensor)
        found: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
        return found

    def spilled(self) -> bool:
        """True if memory other than the elements has changed."""
        expected = self._before.view(self.tensor.dtype).clone()
        view = expected.as_strided(*self._place)
        view.copy_(self.tensor)
        return not torch.equal(expected.view(torch.uint8), self._memory)

    def changed(self) -> bool:
        """True if any of the memory has changed."""
        return not torch.equal(self._before, self._memory)
