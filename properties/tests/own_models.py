"""Models of a user's own, right and wrong, as ``--model`` takes them."""

import random
from typing import Any

import torch
from torch import nn

from lockstep.properties.tests.shapes import Plain, Sums


class Net(nn.Module):
    """Two dtypes, a tied weight, dropout, batch norm, a frozen layer and one that is not used, outputs in a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.25)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6))
        self.wide = nn.Linear(6, 6).double()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = self.drop(self.norm(self.embedding(words)))
        hidden = self.frozen(self.body(hidden)) + self.wide(hidden.double()).float()
        return {"logits": self.head(hidden) * scale, "extra": (hidden,)}


def make() -> Any:
    def sample(seed: int) -> Any:
        numbers = torch.Generator().manual_seed(seed)
        words, targets = (torch.randint(7, (5,), generator=numbers) for _ in range(2))
        return {"words": words, "scale": 0.5}, lambda given: nn.functional.cross_entropy(given["logits"], targets)

    return Net(), sample


def large() -> Any:
    return nn.Linear(1000, 1001), make()[1]


def unsteady() -> Any:
    return nn.Linear(2, 2), lambda seed: (torch.ones(2) * random.random(), torch.sum)


def gives_a_list() -> Any:
    return [nn.Linear(2, 2)]


def raises() -> Any:
    raise KeyError("no data")


class Whole(Plain):
    """Right: buffers begin as rank 0's, too."""

    claims = {"buffers": "initial"}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)

    def finish(self) -> None:
        self.average()


class WholeThatSums(Whole, Sums): ...


class Forgets(Whole):
    """Wrong on this model alone: it takes what is called ``wide`` for something that is no rank's to share."""

    def finish(self) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not name.startswith("wide"):
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()
