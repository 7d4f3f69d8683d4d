"""torchft's data parallelism, with a manager of replicas that are all there. It needs the package torchft-nightly.

The manager's all-reduce is torchft's own: a sum, and then a division.
"""

import contextlib
import logging
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import broadcast_from_rank_zero

with contextlib.suppress(ImportError):  # claims can be read without it
    from torchft.ddp import DistributedDataParallel, PureDistributedDataParallel
_DOCUMENTED = "https://meta-pytorch.org/torchft/ddp.html"


def manager() -> Any:
    """torchft's manager without its server: no replica fails, and none is late."""
    from torchft.manager import Manager

    class AllThere(Manager):
        """Every replica takes part."""

        def __init__(self) -> None:
            self._pg, self._timeout = dist.group.WORLD, timedelta(seconds=60)
            self._logger = logging.getLogger("torchft.manager")

        def errored(self) -> None:
            """No error has been seen: each ends the program."""

        def report_error(self, e: Exception) -> None:
            """Raise it. torchft's own keeps it for `should_commit`, which no program of ours calls."""
            raise e

        def wait_quorum(self) -> None:
            """The replicas are known."""

        def num_participants(self) -> int:
            """The number of replicas that take part."""
            return dist.get_world_size()

        def is_participating(self) -> bool:
            """This one takes part."""
            return True

    return AllThere()


def torchft_ddp(module: nn.Module) -> Any:
    """`DistributedDataParallel`. The documentation asks for "an external mechanism" by which states start alike."""
    broadcast_from_rank_zero(module)
    return DistributedDataParallel(manager(), module)


def torchft_pure_ddp(module: nn.Module) -> Any:
    """`PureDistributedDataParallel`, "a pure Python reimplementation"."""
    broadcast_from_rank_zero(module)
    return PureDistributedDataParallel(manager(), module)


_WHY = {"accumulation": f"declined: features of DDP that are not basic are not tested: {_DOCUMENTED}"}
for _each in (torchft_ddp, torchft_pure_ddp):
    _each.claims, _each.why = {"accumulation": False}, _WHY  # type: ignore[attr-defined]
