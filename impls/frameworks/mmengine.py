"""mmengine: DDP around each submodule, and the collectives of `mmengine.dist`. They need the package mmengine."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

with contextlib.suppress(ImportError):  # claims can be read without it
    from mmengine import dist
    from mmengine.model import MMSeparateDistributedDataParallel

_API = "https://mmengine.readthedocs.io/en/latest/api"
_WRAPPER = f"{_API}/generated/mmengine.model.MMSeparateDistributedDataParallel.html"
_DIST = f"{_API}/dist.html"


class Outer(nn.Module):
    """A module whose only submodule is the model: parameters of the outermost module are wrapped by nobody."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's."""
        return self.model(*inputs, **named)


class MMSeparate(nn.Module):
    """`MMSeparateDistributedDataParallel`: torch's DDP around each submodule that has trained parameters.

    It has no forward of its own: as in its `train_step`, the caller calls the module, whose submodules are wrapped.
    """

    claims: Mapping[str, Any] = {"accumulation": True, "averaging": "multiply by reciprocal then sum"}
    why: Mapping[str, str] = {
        "accumulation": f"`no_sync` is that of all submodules: {_WRAPPER}",
        "averaging": "as torch's DDP",
    }

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = Outer(module)
        self.wrapped = MMSeparateDistributedDataParallel(self.module)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's, in which each submodule is wrapped."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Of the wrapper."""
        with self.wrapped.no_sync():
            yield


class MMCollectives:
    """`all_reduce`, `broadcast` and `all_gather` of `mmengine.dist`. The first two change their tensor in place."""

    claims: Mapping[str, Any] = {"collectives": ("all_reduce", "broadcast", "all_gather")}
    why: Mapping[str, str] = {
        "collectives": f"functions of the package, each with a `group` to work on: {_DIST}",
    }

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Any) -> torch.Tensor:
        """It calls the average "mean"."""
        dist.all_reduce(values, "mean" if reduction == "average" else reduction, group)
        return values

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Any) -> torch.Tensor:
        """It hands ``root`` to torch, which takes a global rank."""
        dist.broadcast(values, root, group)
        return values

    @staticmethod
    def all_gather(values: torch.Tensor, group: Any) -> torch.Tensor:
        """Its list, put together."""
        return torch.cat(dist.all_gather(values, group))
