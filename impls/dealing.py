"""A sampler and a loader that deal samples to ranks: the shuffled order, cut across the ranks.

One number tells the position: how many samples of the epoch's order all ranks together have had. So any number of ranks
can resume from the state that one rank has saved.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist


class StridedSampler:
    """Rank r of N gets samples r, r + N, r + 2 N, ... of an order that is the same on all ranks.

    If N does not divide their number, samples from the beginning of the order are repeated, or, with ``drop_last``, the
    last ones are left out.
    """

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "any ranks"}

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.length = len(dataset)
        self.ranks = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self.had = 0  # samples of this epoch that all ranks together have been dealt
        self.begin = 0  # from where the next iteration begins

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order; another epoch begins with its first sample."""
        if epoch != self.epoch:
            self.begin = self.had = 0
        self.epoch = epoch

    def order(self) -> list[int]:
        """All samples, as they come in this epoch."""
        if not self.shuffle:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return list(torch.randperm(self.length, generator=generator).tolist())

    def evened(self, rest: Sequence[int], order: Sequence[int]) -> list[int]:
        """The rest of the order, so that every rank gets equally many."""
        if self.drop_last:
            return list(rest[: len(rest) // self.ranks * self.ranks])
        return [*rest, *islice(cycle(order), -len(rest) % self.ranks)]

    def share(self) -> list[int]:
        """The rest of the epoch for this rank, from the place where an iteration begins."""
        self.had, self.begin = self.begin, 0
        order = self.order()
        return self.evened(order[self.had :], order)[self.rank :: self.ranks]

    def __iter__(self) -> Iterator[int]:
        for sample in self.share():
            self.had += self.ranks
            yield sample
        self.had = 0

    def __len__(self) -> int:
        return self.length // self.ranks if self.drop_last else -(-self.length // self.ranks)

    def state_dict(self) -> dict[str, int]:
        """The position of all ranks; at the end of an epoch, the beginning of another: the loop knows which."""
        return {"epoch": self.epoch, "had": self.had or self.begin}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """The next iteration goes on from there."""
        self.epoch, self.begin = state["epoch"], state["had"]


class StridedLoader:
    """Batches of a `StridedSampler`'s samples, loaded; with ``drop_last`` only full ones."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "any ranks"}

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, seed: int = 0, drop_last: bool = False
    ) -> None:
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.sampler = StridedSampler(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        share, size = self.sampler.share(), self.batch_size
        for batch in (share[start : start + size] for start in range(0, len(share), size)):
            if len(batch) == size or not self.drop_last:
                self.sampler.had += len(batch) * self.sampler.ranks
                yield torch.tensor([self.dataset[sample] for sample in batch])
        self.sampler.had = 0

    def __len__(self) -> int:
        full, more = divmod(len(self.sampler), self.batch_size)
        return full + (more > 0 and not self.drop_last)

    def state_dict(self) -> dict[str, int]:
        """The position of all ranks."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """The next iteration goes on from there."""
        self.sampler.load_state_dict(state)

    def gather_for_metrics(self, values: torch.Tensor) -> torch.Tensor:
        """The results of all ranks on their present batches, one element per sample, in the order of the samples.

        Repeated samples are left out.
        """
        sampler = self.sampler
        gathered = [torch.empty_like(values) for _ in range(sampler.ranks)]
        dist.all_gather(gathered, values)
        in_order = torch.stack(gathered, dim=1).flatten(0, 1)
        before = sampler.had - len(in_order)
        return in_order[: sampler.length - before]
