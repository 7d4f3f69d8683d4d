"""Loaders that Lightning Fabric sets up. They need the package lightning-fabric, and real processes."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader


def fabric() -> Any:
    """A launched `Fabric` of the ranks that are there."""
    from lightning_fabric import Fabric

    made = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    made.launch()
    return made


class FabricLoader:
    """Fabric sets the sampler's epoch itself, one more in each iteration. Its seed is that of `seed_everything`."""

    claims: Mapping[str, Any] = {"sampler": True}

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        os.environ["PL_GLOBAL_SEED"] = str(seed)
        loader = DataLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last)
        self.loader = fabric().setup_dataloaders(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
