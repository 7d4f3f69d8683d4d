"""Loaders that Lightning Fabric sets up. They need the package lightning-fabric, and real processes."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def fabric() -> Any:
    """A launched `Fabric` of the ranks that are there."""
    compiles = torch.compile
    from lightning_fabric import Fabric

    torch.compile = compiles  # importing it wraps `torch.compile`, and a process that is changed is not used again
    made = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    made.launch()
    return made


class FabricLoader:
    """Fabric sets the sampler's epoch itself, one more in each iteration. Its seed is that of `seed_everything`.

    `drop_last` is not taken: it drops a last batch that is not full, and Fabric's sampler repeats samples all the same.
    """

    claims: Mapping[str, Any] = {"sampler": True}
    why: Mapping[str, str] = {
        "sampler": "Fabric gives each process a distributed sampler",
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int) -> None:
        os.environ["PL_GLOBAL_SEED"] = str(seed)
        self.loader = fabric().setup_dataloaders(DataLoader(dataset, batch_size, shuffle=shuffle))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
