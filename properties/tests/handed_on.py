"""On every rank: a model with a unit that hands on a view of its input, in `impls.zero3` and as it is."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.zero3 import Zero3


class Scales(nn.Module):
    """Multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the shape of ``inputs``."""
        return inputs * self.by


class HandsOn(Scales):
    """Multiplies, and gives the product and its input in another shape."""

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two views."""
        return (inputs * self.by).view(1, -1), inputs.view(1, -1)


class Model(nn.Module):
    """Three layers; ``in_place``: the product of the second is changed in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.first, self.second, self.third = Scales(), HandsOn(), Scales()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the shape of ``inputs``."""
        product, before = self.second(self.first(inputs))
        product = product.mul_(2.0) if self.in_place else product * 2.0
        return self.third(product.view(-1)) + before.view(-1)


def gradients(payload: str, rank: int, world_size: int) -> list[list[Any]]:
    """The means as the sharded model has them, and as they are."""
    inputs, in_place = torch.tensor([1.0, 2.0]) * (rank + 1), json.loads(payload)
    wrapped, plain = Zero3(Model(in_place)), Model(in_place)
    wrapped(inputs).sum().backward()
    wrapped.finish_gradient_synchronization()
    plain(inputs).sum().backward()
    means = []
    for parameter in plain.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        means.append((parameter.grad / world_size).tolist())
    told = [each for each in wrapped.full_gradients().values() if each is not None]
    return [[each.tolist() for each in told], means]
