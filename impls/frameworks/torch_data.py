"""torch's own `DistributedSampler`, alone and under a `DataLoader`."""

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler


class TorchSampler(DistributedSampler[int]):
    """torch's sampler with its defaults. It cannot be resumed inside an epoch."""

    claims = {"sampler": True}
    why = {
        "sampler": "`DistributedSampler` is for each process's part of a data set",
    }


class TorchLoader:
    """A `DataLoader` whose sampler it is, as the documentation has it: the loop calls the sampler's `set_epoch`."""

    claims = {"sampler": True}
    why = {
        "sampler": "`DistributedSampler` is for each process's part of a data set",
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        self.sampler = DistributedSampler(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.loader = DataLoader(dataset, batch_size, sampler=self.sampler, drop_last=drop_last)
        self.set_epoch = self.sampler.set_epoch

    def __iter__(self) -> Any:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
