"""The bytes that a rank holds, counted from outside: all live storages that any operation of torch has touched.

The implementation is not asked, so it cannot hide a tensor. The world's own tensors do not count. Within a micro-batch,
tensors of the model and of autograd do not count either: inputs, activations, gradients.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep import properties, worlds
from lockstep.oracle.events import CopyGradients, Event
from lockstep.properties.ranks.program import read, run_program
from lockstep.properties.ranks.rank import Rank
from lockstep.properties.seen import Seen

# Prefixes of paths. They end in a separator, because a user's folder may be called properties_of_mine.
_WORLDS, _SUITE = (f"{Path(file).parent}{os.sep}" for file in (worlds.__file__, properties.__file__))
# Autograd's operations in backward come directly from the first files, and a dispatch mode is called through the
# others. Operations from the rest of torch are attributed to the implementation.
_AUTOGRAD = ("_tensor.py", "autograd/__init__.py", "autograd/graph.py")
_MODES = ("_compile.py", "_dynamo/eval_frame.py", "utils/_python_dispatch.py")
_PASSED_OVER = (__file__, *(str(Path(torch.__path__[0], name)) for name in (*_AUTOGRAD, *_MODES)))


class Scales(TorchDispatchMode):
    """While entered, remembers each storage that is an input or output of an operation on this thread.

    ``in_a_micro_batch``: new storages of the model and autograd are not attributed to the implementation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, StorageWeakRef] = {}
        self._of_others: set[int] = set()
        self.in_a_micro_batch = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        new = [tensor.untyped_storage() for tensor in tree_leaves((args, kwargs, result)) if _has_storage(tensor)]
        new = [storage for storage in new if storage._cdata not in self._seen]
        if new and not _in_the_world():
            self._seen |= {storage._cdata: StorageWeakRef(storage) for storage in new}
            if self.in_a_micro_batch and _by_the_model():
                self._of_others |= {storage._cdata for storage in new}
        return result

    def bytes(self, of_all: bool = True) -> int:
        """The bytes of all live storages at their present sizes, or only of those of the implementation."""
        self._seen = {key: reference for key, reference in self._seen.items() if not reference.expired()}
        self._of_others &= self._seen.keys()
        counted = self._seen if of_all else self._seen.keys() - self._of_others
        storages = [torch.UntypedStorage._new_with_weak_ptr(key) for key in counted]
        return sum(storage.nbytes() for storage in storages if storage is not None)


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_sparse and value.layout is torch.strided


def _in_the_world() -> bool:
    """True if the operation was called by the world."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_WORLDS):
            return True
        if frame.f_code is weigh_program.__code__:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _by_the_model() -> bool:
    """True if the probe or autograd called this operation directly."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename in _PASSED_OVER:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_SUITE)


class Weighed(Rank):
    """A rank whose bytes are counted."""

    def __init__(self, scales: Scales, *given: Any) -> None:
        super().__init__(*given)
        self.scales, self.moments = scales, list[tuple[str, int, int, int]]()
        self.seen |= {"bytes": {}, "moments": {}}

    def construct(self) -> None:
        """Construct, and register hooks that run after those of the implementation."""
        super().construct()
        numbers = map(self.scenario.unit, range(len(self.scenario.parameters)))
        units = {home: unit for home, unit in zip(self.probe.homes, numbers, strict=True) if unit is not None}
        for module, unit in {self.probe: -1, **units}.items():
            module.register_forward_pre_hook(lambda *_, unit=unit: self.weigh("forward", unit))
        if self.place < 0:
            self.seen["bytes"][-1] = self.scales.bytes()

    def ended(self, event: Event) -> None:
        """Record the bytes held after an event."""
        if self.conditions.collects and event.ends_gradients:
            gc.collect()
        self.seen["bytes"][self.place] = self.scales.bytes()

    @contextlib.contextmanager
    def during(self, event: Event) -> Iterator[None]:
        """Record the bytes held during a micro-batch. Gradients that the caller copies still count as gradients."""
        if event.makes_gradients:
            self.seen["moments"][self.place] = self.moments = []
        self.scales.in_a_micro_batch = event.makes_gradients or isinstance(event, CopyGradients)
        yield
        self.scales.in_a_micro_batch = False

    def fired(self, index: int) -> None:
        """Called before any hook of the implementation."""
        super().fired(index)
        self.weigh("gradient", index)

    def weigh(self, kind: str, which: int) -> None:
        """Record the bytes at a moment of a micro-batch."""
        if not self.scales.in_a_micro_batch:
            return
        gradients = (parameter.grad for parameter in self.probe.tensors())
        storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in gradients if each is not None}
        whole = sum(storage.nbytes() for storage in storages.values())
        self.moments.append((kind, which, self.scales.bytes(of_all=False), whole))


class _OfTheExample:
    """While entered by any rank of this process, Python's garbage collector sees only objects made since then.

    Older objects take long to traverse and do not belong to a step, so they are frozen.
    """

    inside = 0

    def __enter__(self) -> None:
        if not self.inside:
            gc.collect()
            gc.freeze()
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


_of_the_example = _OfTheExample()


def weigh_program(payload: str, rank: int, world_size: int) -> Seen:
    """As `properties.ranks.program.run_program`, with the ``bytes`` held after construction (-1) and after each event.

    ``moments``: for each Backward, a list of moments (see `properties.judging.gathered.When`), each with the bytes that
    the implementation holds and the bytes of full gradients.
    """
    _, _, conditions = read(payload)
    scales = Scales()
    with scales, _of_the_example if conditions.collects else contextlib.nullcontext():
        return run_program(payload, rank, world_size, partial(Weighed, scales))
