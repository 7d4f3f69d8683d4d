"""torchdata's stateful loader with its distributed sampler. It needs the package torchdata."""

from collections.abc import Iterator, Mapping
from typing import Any


class TorchdataLoader:
    """`StatefulDataLoader` over `StatefulDistributedSampler`, whose `set_epoch` the loop calls."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        self.sampler = StatefulDistributedSampler(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.loader = StatefulDataLoader(dataset, batch_size, sampler=self.sampler, drop_last=drop_last)
        self.set_epoch = self.sampler.set_epoch
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class TorchdataSampler:
    """`StatefulDistributedSampler` alone."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}

    def __init__(self, dataset: Any, shuffle: bool, seed: int, drop_last: bool) -> None:
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        self.sampler = StatefulDistributedSampler(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.set_epoch = self.sampler.set_epoch
        self.state_dict, self.load_state_dict = self.sampler.state_dict, self.sampler.load_state_dict

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)
