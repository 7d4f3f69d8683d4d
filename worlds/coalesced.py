"""One handle for several collectives that were launched by one call."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.futures import Future, collect_all


class Together(dist.Work):
    """A handle that is completed when all of ``works`` are. Waiting waits for each, in order."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = [work for work in works if work is not None]  # NCCL gives none for what it need not wait for

    def is_completed(self) -> bool:
        """True if every one of them is completed."""
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until every one of them is carried out and delivered."""
        for work in self._works:
            work.wait()
        return True

    def get_future(self) -> Future:
        """Has the outputs of all of them, in order."""
        futures = [work.get_future() for work in self._works]
        return collect_all(futures).then(lambda done: [output for each in done.value() for output in each.value()])
