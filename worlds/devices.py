"""The device of a rank's tensors, and the accelerators of this machine.

On each rank the world calls `settle` with the place of that rank's tensors. Code that makes tensors there calls
`place`.
"""

from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

DEVICES = ("cpu", "cuda")
_place = "cpu"


def place() -> str:
    """The device on which this rank's tensors belong: "cpu" or "cuda:0", as `torch.device` reads it."""
    return _place


def settle(device: str, local_rank: int) -> None:
    """Gives this process its device: where there are more ranks than GPUs, they share them in turn."""
    global _place
    if device == "cpu":
        _place = "cpu"
        return
    import torch

    index = local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    _place = f"cuda:{index}"


def look() -> Mapping[str, Any]:
    """The machine as torch sees it: its "version", the names of its "gpus", and the "nccl" version, if any.

    It runs in a process of its own, so that no driver is loaded into the calling process.
    """
    from lockstep.worlds import process

    child = process.Child(_answer)
    try:
        child.await_start()
        if not process.wait([child], 60.0):
            raise process.Died("did not say within 60 s which GPUs there are")
        found: Mapping[str, Any] = child.receive()
        return found
    finally:
        child.kill()


def _answer(connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus and dist.is_nccl_available() else ""
    connection.send({"version": torch.__version__, "gpus": gpus, "nccl": nccl})
