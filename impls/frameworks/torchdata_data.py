"""torchdata's `StatefulDataLoader`, over torch's sampler and over its own. They need the package torchdata."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DistributedSampler


class TorchdataLoader:
    """Over torch's `DistributedSampler`, whose `set_epoch` the loop calls; the loader counts what it skips."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}
    why: Mapping[str, str] = {
        "sampler": "the sampler is torch's or torchdata's",
        "resumes": "`StatefulDataLoader` has a `state_dict`, of this rank",
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        self.sampler = self.sampler_of(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.loader = StatefulDataLoader(dataset, batch_size, sampler=self.sampler, drop_last=drop_last)
        self.set_epoch = self.sampler.set_epoch
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def sampler_of(self, dataset: Any, **options: Any) -> Any:
        """The sampler."""
        return DistributedSampler(dataset, **options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class TorchdataStatefulSampler(TorchdataLoader):
    """Over torchdata's `StatefulDistributedSampler`, which saves its own position."""

    def sampler_of(self, dataset: Any, **options: Any) -> Any:
        """The sampler."""
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        return StatefulDistributedSampler(dataset, **options)
