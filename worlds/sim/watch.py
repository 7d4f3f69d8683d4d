"""Watch the tensors of a rank's collectives and messages in flight, in every operation that torch dispatches."""

import contextlib
import gc
import sys
from _thread import get_ident
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.worlds.contract import Asynchrony, Hazard
from lockstep.worlds.sim.region import Region, regions

if TYPE_CHECKING:
    from lockstep.worlds.sim.flight import Flight

_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parent.parent
_WRAPPERS = ("contextlib.py", "functools.py", "threading.py", "typing_extensions.py", "warnings.py")
_LIBRARIES = (Path(contextlib.__file__).parent, _TORCH.parent)  # where these are; a user's may be called alike
# Operations that look at shapes and dtypes only, or that change what a tensor is a view of and no value.
_NO_VALUES = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full", "_unsafe_view", "is_same_size"),
    *("set_", "resize_", "record_stream", "is_pinned", "_has_same_storage_numel", "_version"),
}


class Watch(TorchDispatchMode):
    """The collectives and messages that a rank has in flight, and the `Hazard`s seen.

    ``draws``: see `worlds.contract.Asynchrony`. Three things are no hazard: reading a tensor that the collective only
    reads, making a view, and any act of the world itself.
    """

    def __init__(self, rank: int, asynchrony: Asynchrony, draws: Iterator[int]) -> None:
        super().__init__()
        self.rank, self.asynchrony, self.draws = rank, asynchrony, draws
        self.hazards: list[Hazard] = []
        self._in_flight: list[Flight] = []
        self._dropped: list[tuple[Flight, str]] = []  # and the lines of it, not yet known to do harm
        self._inside = 0  # how deep in the world's own code
        self.over = False  # whether the rank's function has ended, so that its variables are no more

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._in_flight and not self._inside:
            with self.ours():
                self._settle()
                if not _sees_no_values(func):
                    self._look(func, args, kwargs)
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """While this runs, the rank is in the world's own code."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for argument in func._schema.arguments:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for region in regions(_tensors(given.get(argument.name))):
                self._meet(region, writes, str(func))

    def _meet(self, region: Region, writes: bool, by: str) -> None:
        for flight in self._in_flight:
            if flight.writes(region) or (writes and flight.reads(region)):
                self.report("changed" if writes else "used", flight, by, self.line())

    def launch(self, flight: "Flight") -> None:
        """Takes another collective into account."""
        for other in self._in_flight:
            if any(map(other.writes, (*flight.read_regions, *flight.written_regions))) or any(
                map(other.reads, flight.written_regions)
            ):
                self.report("shared", other, str(flight.call), flight.launched)
                flight.reported.add("shared")
        self._in_flight.append(flight)

    def land(self, flight: "Flight") -> None:
        """This one is done."""
        self._in_flight.remove(flight)

    def drop(self, flight: "Flight") -> None:
        """The last reference to a handle has gone. What the collector of cycles frees says nothing about when."""
        line = "" if self.over or _collector == get_ident() else self.line()
        if line:  # else the rank's function has returned, and somebody might have waited in a later call
            self._dropped.append((flight, line))

    def _settle(self) -> None:
        """A handle that went together with its tensors mostly does no harm; what happened since tells."""
        dropped, self._dropped = self._dropped, []
        for flight, line in dropped:
            if flight.missed():
                self.report("dropped", flight, "the last reference to it", line)

    def moment(self) -> None:
        """The rank is in the world's code, where results that are there may be written."""
        self._settle()
        for flight in list(self._in_flight):
            flight.moment()

    def report(self, kind: str, flight: "Flight", by: str, line: str = "") -> None:
        """Once for each collective and kind; what is said of a tensor's being shared is not said again."""
        if kind not in flight.reported and (kind != "changed" or "shared" not in flight.reported):
            flight.reported.add(kind)
            self.hazards.append(Hazard(kind, self.rank, flight.call, flight.place, by, flight.launched, line))

    def line(self) -> str:
        """The innermost line of this thread that is neither torch's nor ours."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not _is_passed_over(file):
                return f"{file}:{frame.f_lineno}, in {frame.f_code.co_name}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""


@cache
def _is_passed_over(file: str) -> bool:
    """True if a file is torch's, ours, made in memory, or a wrapper of Python's around somebody's code."""
    path = Path(file)
    ours = path.is_relative_to(_OURS) and not path.is_relative_to(_OURS / "tests")
    wrapper = path.name in _WRAPPERS and path.parent in _LIBRARIES
    return file.startswith("<") or ours or path.is_relative_to(_TORCH) or wrapper


_collector = 0  # the thread in which the collector of cycles runs; others may run meanwhile, in its finalizers


def _on_collection(phase: str, _: Any) -> None:
    global _collector
    _collector = get_ident() if phase == "start" else 0


gc.callbacks.append(_on_collection)


@cache
def _sees_no_values(func: Any) -> bool:
    """Views, factories that take a tensor as a pattern, and c10d's own operations, which come to `launch`."""
    namespace, _, name = func._schema.name.partition("::")
    changes_a_view = torch.Tag.inplace_view in func.tags
    return func.is_view or changes_a_view or name in _NO_VALUES or namespace in ("c10d", "_c10d_functional")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list | tuple) else []
