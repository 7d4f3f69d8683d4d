"""Stubs for CUDA calls that only order work on a GPU, so that code written for CUDA runs on CPUs.

They are installed on request and only without a GPU. The rest of `torch.cuda` is unchanged. Moving a tensor to a GPU
still fails.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

_ASKED = "LOCKSTEP_CUDA_STUBS"
TOLD = (
    "CUDA stubs: torch.cuda.synchronize, streams, events, nvtx and the like do nothing here, so what they are to order "
    "is not tested"
)
# Functions that return nothing.
_OF_CUDA = (
    *("synchronize", "set_device", "set_stream", "empty_cache", "ipc_collect", "init"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed", "manual_seed_all"),
)
_COUNTS = ("current_device", "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
_OF_NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")


def ask(asked: bool) -> None:
    """Request the stubs, or not, for this process and the processes that it starts."""
    os.environ.pop(_ASKED, None)
    if asked:
        os.environ[_ASKED] = "1"


@contextlib.contextmanager
def asking(asked: bool) -> Iterator[None]:
    """Request the stubs, or not, until the end of the context. Then the former state is restored."""
    before = are_asked()
    ask(asked)
    try:
        yield
    finally:
        ask(before)


def are_asked() -> bool:
    """True if the stubs were requested."""
    return _ASKED in os.environ


class Stream:
    """A stream or an event that never waits."""

    device, cuda_stream, device_index, stream_id = None, 0, 0, 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def query(self) -> bool:
        """True: all work is done."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Zero: no time has passed."""
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return event or Stream()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    wait_stream = wait_event = wait = record = synchronize = _nothing

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _zero(*_: Any, **__: Any) -> int:
    """Return 0, as on a machine without a GPU."""
    return 0


def install() -> None:
    """Replace the calls in this process for good, if that was requested and there is no GPU."""
    if are_asked():
        _replace()


@functools.cache
def _replace() -> None:
    import torch

    cuda: Any = torch.cuda
    if cuda.is_available():
        return
    for name in _OF_CUDA:
        setattr(cuda, name, _nothing)
    for name in _COUNTS:
        setattr(cuda, name, _zero)
    for name in _OF_NVTX:
        setattr(cuda.nvtx, name, _nothing)
    cuda.nvtx.range = lambda *_, **__: contextlib.nullcontext()
    cuda.Stream = cuda.ExternalStream = cuda.Event = Stream
    cuda.stream = cuda.device = lambda *_, **__: contextlib.nullcontext()
    cuda.current_stream = cuda.default_stream = Stream
    torch.Tensor.record_stream = _nothing
