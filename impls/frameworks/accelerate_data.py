"""Loaders that accelerate prepares, resumed as its documentation says. They need the package accelerate.

accelerate keeps one state per process, so that only real processes can run it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

_CHECKPOINTS = "https://huggingface.co/docs/accelerate/usage_guides/checkpoint"
_SKIPS = f"`skip_first_batches` goes on in the middle of an epoch: {_CHECKPOINTS}"
_SAME_SIZE = "https://huggingface.co/docs/accelerate/quicktour"


def accelerator(gradient_accumulation_steps: int = 1, **options: Any) -> Any:
    """An `Accelerator` of this process, as if it were the first; the options are those of its loaders."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DataLoaderConfiguration

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    loaders = DataLoaderConfiguration(**options)
    return Accelerator(cpu=True, gradient_accumulation_steps=gradient_accumulation_steps, dataloader_config=loaders)


class AccelerateLoader:
    """With a seedable sampler. Interrupted, it goes on with `skip_first_batches`."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}
    why: Mapping[str, str] = {
        "sampler": "`prepare` gives each process its part of the batches",
        "resumes": _SKIPS,
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        self.accelerator = accelerator(use_seedable_sampler=True, data_seed=seed)
        self.loader = self.accelerator.prepare(DataLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last))
        self.epoch = self.given = self.skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Of the prepared loader."""
        self.epoch = epoch
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self.given, self.skip = self.skip, 0
        loader = self.accelerator.skip_first_batches(self.loader, self.given) if self.given else self.loader
        for batch in loader:
            self.given += 1
            yield batch
        self.given = 0

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, int]:
        """The state that a training script saves: the number of batches that it has had."""
        return {"given": self.given or self.skip}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """The next iteration skips as many."""
        self.skip = state["given"]

    def gather_for_metrics(self, values: torch.Tensor) -> torch.Tensor:
        """Of the accelerator."""
        found: torch.Tensor = self.accelerator.gather_for_metrics(values)
        return found


class AccelerateUneven(AccelerateLoader):
    """With `even_batches=False`, which is for ranks that join."""

    claims: Mapping[str, Any] = {
        "sampler": True,
        "remainder": "uneven",
        "resumes": "same ranks",
        "gathers": False,
    }
    why: Mapping[str, str] = {
        "sampler": "`prepare` gives each process its part of the batches",
        "remainder": "`even_batches=False`, which is for ranks that join",
        "resumes": _SKIPS,
        "gathers": f"declined: `gather_for_metrics` is for tensors of one size on all processes: {_SAME_SIZE}",
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int) -> None:
        self.accelerator = accelerator(use_seedable_sampler=True, data_seed=seed, even_batches=False)
        self.loader = self.accelerator.prepare(DataLoader(dataset, batch_size, shuffle=shuffle))
        self.epoch = self.given = self.skip = 0


class AccelerateSplit(AccelerateLoader):
    """With `split_batches=True`: a batch of the loader is that of all ranks together."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}
    why: Mapping[str, str] = {
        "sampler": "`split_batches`: a batch of the loader is that of all ranks together",
        "resumes": _SKIPS,
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        self.accelerator = accelerator(use_seedable_sampler=True, data_seed=seed, split_batches=True)
        whole = batch_size * self.accelerator.num_processes
        self.loader = self.accelerator.prepare(DataLoader(dataset, whole, shuffle=shuffle, drop_last=drop_last))
        self.epoch = self.given = self.skip = 0


class AccelerateStateful:
    """With `use_stateful_dataloader=True`, which needs torchdata too."""

    claims: Mapping[str, Any] = {"sampler": True, "resumes": "same ranks"}
    why: Mapping[str, str] = {
        "sampler": "`prepare` gives each process its part of the batches",
        "resumes": "`use_stateful_dataloader`: the loader has a `state_dict`",
    }

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        options = {"use_seedable_sampler": True, "data_seed": seed, "use_stateful_dataloader": True}
        self.accelerator = accelerator(**options)
        self.loader = self.accelerator.prepare(DataLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last))
        self.set_epoch = self.loader.set_epoch
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict
        self.gather_for_metrics = self.accelerator.gather_for_metrics

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
