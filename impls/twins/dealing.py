"""Samplers and loaders that are right in unusual ways."""

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch

from lockstep.impls.dealing import StridedLoader, StridedSampler


class Blocks:
    """Each rank has a block of the data set for good, and shuffles inside it."""

    odd = "ranks get the same samples each epoch, in another order, and epochs are counted by the sampler itself"
    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}

    def __init__(self, data_source: Sized, world_size: int, rank: int, shuffle: bool, seed: int) -> None:
        each = -(-len(data_source) // world_size)
        self.block = [place % len(data_source) for place in range(rank * each, (rank + 1) * each)]
        self.shuffle, self.seed, self.epoch, self.given, self.skipped = shuffle, seed, 0, 0, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        chances = torch.Generator().manual_seed(1_000 * self.seed + self.epoch)
        order = torch.randperm(len(self.block), generator=chances) if self.shuffle else torch.arange(len(self.block))
        self.given, self.skipped = self.skipped, 0
        for place in order[self.given :]:
            self.given += 1
            yield torch.tensor(self.block[int(place)])
        self.given, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "given": self.given or self.skipped}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.epoch, self.skipped = state["epoch"], state["given"]


class Uneven(StridedLoader):
    """Fills nothing up: for ranks that join."""

    odd = "some ranks get fewer samples than others"
    claims: Mapping[str, Any] = {"sampler": True, "remainder": "uneven", "resumes": "same ranks", "gathers": False}

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int) -> None:
        super().__init__(dataset, batch_size, shuffle, seed)
        self.sampler.evened = lambda rest, order: list(rest)  # type: ignore[method-assign]

    def __len__(self) -> int:
        mine = len(range(self.sampler.rank, self.sampler.length, self.sampler.ranks))
        return math.ceil(mine / self.batch_size)


class SavesWhatIsLeft(StridedSampler):
    """Saves no position, but the samples that are still to come on all ranks."""

    odd = "what is saved is a list of samples, from the last to the first that is left"

    def __init__(self, dataset: Sized, shuffle: bool, seed: int, drop_last: bool) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.left: list[int] = []

    def share(self) -> list[int]:
        whole = self.order()
        left, self.left, self.begin = self.left or whole, [], 0
        self.had = len(whole) - len(left)
        return self.evened(left, whole)[self.rank :: self.ranks]

    def state_dict(self) -> dict[str, Any]:
        had = self.had or (self.length - len(self.left) if self.left else 0)
        return {"epoch": self.epoch, "left": self.order()[had:][::-1] if had else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.left = state["epoch"], list(state["left"][::-1])


class GathersAtTheEnd(StridedLoader):
    """Sends once, not with every batch."""

    odd = "of every batch but the last nothing is gathered, and then all of the epoch"
    claims: Mapping[str, Any] = {"sampler": True, "resumes": None}

    def __init__(self, dataset: Any, batch_size: int) -> None:
        super().__init__(dataset, batch_size)
        self.kept: list[torch.Tensor] = []

    def gather_for_metrics(self, values: torch.Tensor) -> torch.Tensor:
        self.kept.append(values)
        whole: Sequence[int] = range(self.sampler.length)
        if self.sampler.had < len(whole):
            return values[:0]
        kept, self.kept = torch.cat(self.kept), []
        return super().gather_for_metrics(kept)
