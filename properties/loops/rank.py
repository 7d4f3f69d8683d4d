"""The program of every rank for P19: a training loop, window by window.

The world calls these functions by name. The input is JSON, the output plain data.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.properties.claim import on_one_line
from lockstep.properties.loops.shape import arguments
from lockstep.properties.loops.training import Training
from lockstep.properties.ranks import lookup

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and mask, both (samples, tokens)


class Probe(nn.Module):
    """Two weights v and w. A token of value a has the loss a (3 v + 4 w)."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        self.w = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The loss of each token, (samples, tokens)."""
        return inputs * (3 * self.v + 4 * self.w)


def batch(samples: Sequence[Sequence[int]], infinite: bool) -> Batch:
    """A micro-batch. The mask is 1 for tokens that count, else 0. Each sample ends with tokens that do not count."""
    longest = max(map(len, samples)) + 1
    inputs = torch.tensor(
        [[*map(float, tokens), *[5.0] * (longest - len(tokens))] for tokens in samples], dtype=torch.float64
    )
    mask = torch.tensor([[1.0] * len(tokens) + [0.0] * (longest - len(tokens)) for tokens in samples]).double()
    if infinite:
        inputs[mask > 0] = math.inf
    return inputs, mask


def made(name: str, training: Training, halves: bool) -> tuple[Any, Probe]:
    """A loop constructed with the arguments that it takes, and its model."""
    model = Probe()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.5**number) if halves else None
    given: Mapping[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "max_norm": None if training.max_norm is None else 2.0**training.max_norm,
        "accumulate": training.accumulate,
    }
    implementation = lookup.find(name)
    return implementation(**{argument: given[argument] for argument in arguments(implementation)}), model


def windows(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Run all windows of a training. ``got``: for each, the values that the loop returned, and the weights after it."""
    asked = json.loads(payload)
    training = Training(**asked["training"])
    loop, model = made(asked["implementation"], training, asked["halves"])
    got = []
    for place, ranks in enumerate(training.values()):
        infinite = place == training.overflow and rank == world_size - 1
        reported = loop.train_step([batch(samples, infinite) for samples in ranks[rank]])
        loss, norm, rate = (None if each is None else float(each) for each in reported)
        weights = [float(each.detach()) for each in (model.v, model.w)]
        got.append({"loss": loss, "norm": norm, "rate": rate, "weights": weights})
    return {"got": got}


def try_out(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The error (``wrong``) in a target that is taken for a training loop, in one line; empty if there is none."""
    try:
        loop, _ = made(json.loads(payload)["implementation"], Training(1, ((((1,),),),)), False)
        reported = loop.train_step([batch([[1]], False)])
    except Exception as error:  # including a missing package
        return {"wrong": f"taken for a training loop; making one and training a step raised {on_one_line(error)}"}
    try:
        loss, norm, rate = reported
        [float(each) for each in (loss, 0 if norm is None else norm, rate)]
    except (TypeError, ValueError):
        due = "the loss, the norm or None, and the learning rate"
        return {"wrong": f"taken for a training loop; its train_step returned {on_one_line(reported)}, not {due}"}
    return {"wrong": ""}
