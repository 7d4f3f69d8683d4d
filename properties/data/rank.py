"""The program of every rank for P20: a sampler, batch sampler or loader, epoch by epoch, interrupted or not.

The world calls these functions by name. The input is JSON, the output plain data.
"""

import base64
import io
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lockstep.properties.claim import on_one_line
from lockstep.properties.data.dealing import Dealing
from lockstep.properties.data.shape import arguments
from lockstep.properties.ranks import lookup

Items = list[list[int]]  # the samples of each item; a single one if the item is no batch


class Samples(Dataset[int]):
    """A data set in which each sample is its own index."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self._length:
            raise IndexError(f"sample {place} of {self._length}")
        return int(place)


def made(name: str, dealing: Dealing, rank: int, world_size: int) -> Any:
    """A sampler in a fresh process, constructed with the arguments that it takes.

    The random numbers of torch, NumPy and Python differ between ranks, as with a seed for each rank. They are the same
    in each process of a rank.
    """
    seed = 1000 * dealing.seed + rank
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    given: Mapping[str, Any] = {
        "dataset": Samples(dealing.length),
        "length": dealing.length,
        "ranks": world_size,
        "rank": rank,
        "batch": dealing.batch,
        "shuffle": dealing.shuffle,
        "seed": dealing.seed,
        "drop_last": dealing.drop_last,
    }
    implementation = lookup.find(name)
    return implementation(**{argument: given[meaning] for meaning, argument in arguments(implementation).items()})


def numbers(item: Any) -> list[int]:
    """The samples of an item: a number, a batch of numbers, or such a batch in a tuple of one."""
    return [int(each) for each in torch.as_tensor(item).reshape(-1).tolist()]


def begun(sampler: Any, epoch: int) -> None:
    """Prepare an epoch as a training loop does."""
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def epochs(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Whole epochs of a new sampler.

    ``got``: the items of each. ``lengths``: the value of `len` before each; None without it. A sampler with a
    `set_epoch` begins with the first observed epoch. Any other one runs through all earlier epochs.
    """
    asked = json.loads(payload)
    dealing = read(asked["dealing"])
    sampler = made(asked["implementation"], dealing, rank, world_size)
    got: list[tuple[str, Items]] = []
    lengths: list[int | None] = []
    for epoch in range(0 if not hasattr(sampler, "set_epoch") else dealing.epoch, dealing.epoch + asked["epochs"]):
        begun(sampler, epoch)
        length = len(sampler) if hasattr(type(sampler), "__len__") else None
        items = [numbers(item) for item in sampler]
        if epoch >= dealing.epoch:
            got.append((f"epoch {epoch}", items))
            lengths.append(length)
    return {"got": got, "lengths": lengths}


def interrupted(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """An epoch with interruptions. ``got``: its parts. ``state``: the state at the last interruption, as text.

    At each interruption the state goes through a file into a new sampler. ``state`` in the payload: the state to load
    first. ``then``: the number of epochs after the last interruption, including the rest of the interrupted one.
    """
    asked = json.loads(payload)
    dealing, saved = read(asked["dealing"]), asked.get("state")
    got: list[tuple[str, Items]] = []
    epoch, taken = dealing.epoch, 0
    for stop in dealing.stops if saved is None else ():
        sampler = _resumed(asked["implementation"], dealing, rank, world_size, saved, epoch)
        given: Iterator[Any] = iter(sampler) if stop else iter(())  # must not advance while the state is saved
        items = [numbers(item) for item in (given if stop < 0 else itertools.islice(given, stop))]
        got.append((_part(epoch, taken), items))
        epoch, taken = (epoch + 1, 0) if stop < 0 else (epoch, taken + len(items))
        saved = _written(sampler.state_dict())
    if asked["then"]:
        epoch, taken = asked.get("at", (epoch, taken))
        sampler = _resumed(asked["implementation"], dealing, rank, world_size, saved, epoch)
        got.append((_part(epoch, taken), [numbers(item) for item in sampler]))
        for later in range(epoch + 1, epoch + asked["then"]):
            begun(sampler, later)
            got.append((f"epoch {later}", [numbers(item) for item in sampler]))
    return {"got": got, "state": saved, "at": (epoch, taken)}


def evaluation(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """An epoch in which each batch is gathered.

    ``got``: the items of this rank's loader. ``gathered``: the gathered samples.
    """
    asked = json.loads(payload)
    sampler = made(asked["implementation"], read(asked["dealing"]), rank, world_size)
    items: Items = []
    gathered: list[int] = []
    for item in sampler:
        items.append(numbers(item))
        gathered += numbers(sampler.gather_for_metrics(torch.tensor(items[-1])))
    return {"got": [("its batches", items), ("gathered", [[each] for each in gathered])], "gathered": gathered}


def try_out(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The error (``wrong``) in a target that is taken for a sampler, in one line; empty if there is none."""
    asked = json.loads(payload)
    try:
        item = next(iter(made(asked["implementation"], Dealing(1, 4, asked["batch"]), rank, world_size)), None)
    except Exception as error:  # including a missing package
        return {"wrong": f"taken for a sampler; making one and taking a sample raised {on_one_line(error)}"}
    try:
        numbers(item)
    except (TypeError, ValueError, RuntimeError):
        return {
            "wrong": f"taken for a sampler; it gave {on_one_line(item)}, which is no number of a sample and no batch"
        }
    return {"wrong": ""}


def read(data: Mapping[str, Any]) -> Dealing:
    """A dealing from its JSON data."""
    return Dealing(**{**data, "stops": tuple(data["stops"])})


def _resumed(name: str, dealing: Dealing, rank: int, world_size: int, saved: str | None, epoch: int) -> Any:
    """A new sampler that continues from the saved state. Its epoch is set as the loop does before each epoch."""
    sampler = made(name, dealing, rank, world_size)
    if saved is not None:
        sampler.load_state_dict(torch.load(io.BytesIO(base64.b64decode(saved)), weights_only=False))
        begun(sampler, epoch)
        return sampler
    for earlier in range(0 if not hasattr(sampler, "set_epoch") else epoch, epoch):
        begun(sampler, earlier)
        list(sampler)
    begun(sampler, epoch)
    return sampler


def _written(state: Any) -> str:
    file = io.BytesIO()
    torch.save(state, file)
    return base64.b64encode(file.getvalue()).decode()


def _part(epoch: int, taken: int) -> str:
    return f"epoch {epoch}" + (f", after {taken} item{'s' * (taken > 1)}" if taken else "")
