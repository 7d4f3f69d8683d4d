"""torch's `replicate`, the composable form of DistributedDataParallel.

It changes the module itself, and sets up DDP when the module is called first: until then ranks have their own values.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate import replicate

from lockstep.impls.frameworks.torch_ddp import IN_EVERY_FORM


class Replicate:
    """Every trained parameter takes part on every rank. Buffers are left alone."""

    # Not claimed: errors of the caller's, and parameters frozen after wrapping, as of DDP; and inference mode, in which
    # a first forward makes buckets that cannot be trained with (docs/findings).
    claims = {
        **IN_EVERY_FORM,
        "reentrant_checkpointing": "each once",
        "equal_from": "first forward",
        "direct_forwards": True,
        "inference_mode": False,
        "copied_models": False,  # it refuses a deep copy
        "sparse_gradients": False,  # it hands DDP parameters without their modules, and DDP asks these
    }

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        if bucket_cap_mb == 0 and torch.__version__ < "2.12":  # it would raise in the first forward
            raise ValueError("DDP of torch 2.11 takes no bucket cap of zero")
        self.module: Any = replicate(module, bucket_cap_mb=bucket_cap_mb)
        self.synchronize = True

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The module's own forward."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context that uses the switch of `replicate`, and puts it back to its old state."""
        before = self.synchronize
        self.set(False)
        try:
            yield
        finally:
            self.set(before)

    def set(self, synchronize: bool) -> None:
        """Reduce gradients from the next forward on, or do not."""
        self.synchronize = synchronize
        self.module.set_requires_gradient_sync(synchronize)
