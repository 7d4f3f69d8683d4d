"""Bytes that a rank holds, counted from outside: every storage that any operation of torch has touched and that lives.

What an implementation keeps it cannot hide, as nothing is asked of it. What the world itself keeps is not counted.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import worlds
from oracle.program import Finish, Step, ZeroGrad
from properties.rank import Rank, read

_WORLDS = str(Path(worlds.__file__).parent)
WEIGHED = (Finish, Step, ZeroGrad)  # after these, nothing of a micro-batch is left


class Scales(TorchDispatchMode):
    """While it is entered, remembers each storage that operations on this thread take or give."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        new = [tensor.untyped_storage() for tensor in tree_leaves((args, kwargs, result)) if _has_storage(tensor)]
        new = [storage for storage in new if storage._cdata not in self._seen]
        if new and not _in_the_world():
            self._seen |= {storage._cdata: StorageWeakRef(storage) for storage in new}
        return result

    def bytes(self) -> int:
        """Of all storages that live now, at the size that they have now."""
        self._seen = {key: reference for key, reference in self._seen.items() if not reference.expired()}
        storages = [torch.UntypedStorage._new_with_weak_ptr(key) for key in self._seen]
        return sum(storage.nbytes() for storage in storages if storage is not None)


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_sparse and value.layout is torch.strided


def _in_the_world() -> bool:
    """Whether this is the world's own doing."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_WORLDS):
            return True
        if frame.f_code is weigh_program.__code__:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def weigh_program(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """`properties.rank.run_program`, and ``bytes`` held after each event of `WEIGHED`, by its place, -1 at first."""
    name, scenario = read(payload)
    scales, held = Scales(), dict[int, int]()
    with scales:
        program = Rank(name, scenario, rank)
        program.construct()
        held[-1] = scales.bytes()
        for place, event in enumerate(scenario.program):
            program.run(place)
            if isinstance(event, WEIGHED):
                held[place] = scales.bytes()
    return {**program.seen, "bytes": held}
