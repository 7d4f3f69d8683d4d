"""Samplers and loaders with one known fault each: what they deal, in which order, or where they go on."""

import math
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.dealing import StridedLoader, StridedSampler

DEALT = ("test_each_epoch_deals_every_sample_to_one_rank",)
SHUFFLED = ("test_a_shuffled_order_is_another_each_epoch_and_the_same_again",)
RESUMED = ("test_what_is_resumed_goes_on_with_the_next_sample",)
ELSEWHERE = ("test_what_is_resumed_on_other_ranks_repeats_and_misses_nothing",)
EVALUATED = ("test_an_evaluation_counts_every_sample_once",)


class SeedsByRank(StridedSampler):
    """Gives every rank a seed of its own, as for dropout."""

    known_fault = "each rank shuffles with a seed of its own, so that ranks share samples and miss others"
    source = "O01 V https://github.com/NVlabs/LongLive/issues/71, O02 D https://github.com/karpathy/llm.c/issues/792"
    killed_by = DEALT

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.seed += 42 + self.rank


class DividesTheLengthFirst(StridedSampler):
    """Cuts the data set to what ranks can share, and shuffles and fills up after that."""

    known_fault = "the last samples of the data set, fewer than there are ranks, are in no epoch of any rank"
    source = "O03 V https://github.com/modelscope/ms-swift/pull/9907"
    killed_by = DEALT

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed)
        self.length = self.length // self.ranks * self.ranks


class FillsNothingUp(StridedSampler):
    """Takes every N-th sample, and forgets that they may not come out even."""

    known_fault = "the first ranks get a sample more, and wait for the others in the next collective"
    source = "O04 D https://github.com/m2lines/Samudra/pull/557"
    killed_by = DEALT

    def evened(self, rest: Sequence[int], order: Sequence[int]) -> list[int]:
        return list(rest)


class CountsTheRemainder(StridedLoader):
    """Says in `len` how many batches some rank has."""

    known_fault = "`len` counts the last batch that is not full, also where it is dropped"
    source = "O05 D https://github.com/huggingface/accelerate/issues/4122"
    killed_by = DEALT

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.batch_size)


class HeedsNoEpoch(StridedSampler):
    """Shuffles with the seed alone."""

    known_fault = "`set_epoch` changes nothing, so that all epochs have one order"
    source = "O06 D https://github.com/pytorch/pytorch/issues/31771"
    killed_by = SHUFFLED

    def set_epoch(self, epoch: int) -> None:
        self.epoch = 0


class HandsNoEpochOn(StridedLoader):
    """Keeps the epoch for itself, and has a sampler."""

    known_fault = "the loader's `set_epoch` does not reach its sampler"
    source = "O07 D https://github.com/m2lines/Samudra/pull/717"
    killed_by = SHUFFLED
    claims: Mapping[str, Any] = {"sampler": True, "resumes": None}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class DropsItsSeed(StridedSampler):
    """Shuffles with the number of the epoch."""

    known_fault = "every seed gives the same order"
    source = "O08 V https://github.com/open-mmlab/mmagic/pull/815"
    killed_by = SHUFFLED

    def order(self) -> list[int]:
        seed, self.seed = self.seed, 0
        order = super().order()
        self.seed = seed
        return order


class DrawsOn(StridedSampler):
    """Has one generator for all epochs."""

    known_fault = "the order of an epoch depends on how many were drawn before, so that a new process has another one"
    source = "recipe: a generator that is made once"
    killed_by = SHUFFLED
    claims: Mapping[str, Any] = {"sampler": True, "resumes": None}

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.generator = torch.Generator().manual_seed(seed)

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        return list(torch.randperm(self.length, generator=self.generator).tolist())


class CountsFromItsResumption(StridedLoader):
    """Counts what it has given itself."""

    known_fault = "what is saved is counted from the last resumption, so that a second one goes back"
    source = "O09 V https://github.com/KempnerInstitute/KempnerForge/pull/58"
    killed_by = RESUMED
    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}
    came_from = 0

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        super().load_state_dict(state)
        self.came_from = state["had"]

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        return {**state, "had": max(0, state["had"] - self.came_from)}


class ResumesInTheFirstEpoch(StridedSampler):
    """Makes a new sampler that skips, whose epoch is 0."""

    known_fault = "an epoch that is resumed goes on in the order of epoch 0"
    source = "O10 V https://github.com/huggingface/accelerate/pull/4071"
    killed_by = RESUMED
    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}

    def order(self) -> list[int]:
        epoch = self.epoch
        self.epoch = 0 if self.had else epoch
        order = super().order()
        self.epoch = epoch
        return order


class SkipsTheNextEpoch(StridedSampler):
    """Saves how many samples were given, all of them at the end of an epoch."""

    known_fault = "what is saved at the end of an epoch skips the next one"
    source = (
        "O11 V https://github.com/meta-pytorch/data/issues/1513, O12 D https://github.com/meta-pytorch/data/issues/1437"
    )
    killed_by = RESUMED
    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        ended = not state["had"] and self.iterated
        return {**state, "had": self.length + self.ranks if ended else state["had"]}

    iterated = False

    def share(self) -> list[int]:
        self.iterated = True
        return super().share()


class SkipsInEveryEpoch(StridedSampler):
    """Never forgets where it was resumed."""

    known_fault = "each epoch after a resumption begins as late as the one that was resumed"
    source = "recipe: a number of samples to skip that is not taken back"
    killed_by = RESUMED
    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}
    skip = 0

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        super().load_state_dict(state)
        self.skip = state["had"]

    def share(self) -> list[int]:
        self.begin = self.skip
        return super().share()


class CountsItsOwnSamples(StridedSampler):
    """Saves how many samples this rank has had, and skips as many of its own."""

    known_fault = "a rank's own position is taken for that of a rank among more or fewer, which has other samples"
    source = "O13 V https://github.com/huggingface/transformers/issues/40245"
    killed_by = ELSEWHERE

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        return {**state, "had": state["had"] // self.ranks}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        super().load_state_dict({**state, "had": state["had"] * self.ranks})


class ShufflesBlocks(StridedSampler):
    """Shuffles what each rank has, so that no rank reads beyond its part of the data set."""

    known_fault = "the order depends on the number of ranks, and the position of one is used in that of another"
    source = "recipe: shards of the data set that are shuffled apart"
    killed_by = ELSEWHERE

    def order(self) -> list[int]:
        ordered = super().order()
        return [sample for rank in range(self.ranks) for sample in sorted(ordered)[rank :: self.ranks]]


class BeginsAnewElsewhere(StridedSampler):
    """Forgets its position where the number of ranks has changed."""

    known_fault = "on another number of ranks the epoch begins again, and its first samples come twice"
    source = "O14 D https://github.com/OpenRLHF/OpenRLHF/issues/1067"
    killed_by = ELSEWHERE

    def state_dict(self) -> dict[str, int]:
        return {**super().state_dict(), "ranks": self.ranks}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        super().load_state_dict(state if state["ranks"] == self.ranks else {**state, "had": 0})


class CountsWhatFillsUp(StridedLoader):
    """Gathers all that the ranks have."""

    known_fault = "samples that only fill up the last batches count twice in a metric"
    source = (
        "O15 V https://github.com/roboflow/rf-detr/issues/1507, "
        "O16 V https://github.com/huggingface/accelerate/issues/350, "
        "O17 V https://github.com/pytorch/pytorch/issues/25162"
    )
    killed_by = EVALUATED

    def gather_for_metrics(self, values: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(values) for _ in range(self.sampler.ranks)]
        dist.all_gather(gathered, values)
        return torch.cat(gathered)


class DropsAnEvenEnd(StridedLoader):
    """Keeps the remainder of the last batches, by a modulo."""

    known_fault = "where the last batches come out even, the remainder is 0, and all of them are cut off"
    source = "O18 V https://github.com/huggingface/accelerate/issues/952"
    killed_by = EVALUATED

    def gather_for_metrics(self, values: torch.Tensor) -> torch.Tensor:
        gathered = super().gather_for_metrics(values)
        last = self.sampler.had >= self.sampler.length
        whole = self.batch_size * self.sampler.ranks
        return gathered[: self.sampler.length % whole] if last else gathered


class CutsTheLastRank(StridedLoader):
    """Lays the ranks' values end to end, and cuts what is too much from the end."""

    known_fault = "what is cut off are samples of the last rank, and what fills up stays"
    source = "recipe: ranks end to end, where samples go around"
    killed_by = EVALUATED

    def gather_for_metrics(self, values: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(values) for _ in range(self.sampler.ranks)]
        dist.all_gather(gathered, values)
        right = super().gather_for_metrics(values)
        return torch.cat(gathered)[: len(right)]
