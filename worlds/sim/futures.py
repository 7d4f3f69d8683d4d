"""Futures of collectives: a rank that asks one in Python waits for the collectives that it comes from.

A real backend completes futures from threads of its own. A simulated rank has a single thread, which would sleep in C++
if it waited for a future there. `SimWork.get_future` handles the waits of C++ itself.
"""

from _thread import get_ident
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.futures import Future

if TYPE_CHECKING:
    from lockstep.worlds.sim.work import SimWork

_origins: WeakKeyDictionary[Any, list[ref["SimWork"]]] = WeakKeyDictionary()  # of futures
_open: dict["SimWork", None] = {}  # of all ranks, in order: those with a future that is not done


def forget() -> None:
    """Forget the futures that earlier examples have left open."""
    _origins.clear()
    _open.clear()


def future_of(work: "SimWork") -> Future:
    """A new one, which is completed when `close` says so."""
    future: Future = Future()
    _origins[future] = [ref(work)]
    _open[work] = None
    return future


def close(work: "SimWork") -> bool:
    """The work is done. Returns whether its future is still to be told."""
    if work not in _open:
        return False
    del _open[work]
    return True


@cache
def ask_ranks_first() -> None:
    """Once for this process: torch's futures ask the rank whose thread waits for them, before C++ does."""
    usual, collect = torch._C.Future, torch._C._collect_all
    wait, done, then, extract = usual.wait, usual.done, usual.then, torch._jit_internal._extract_tensors

    def wait_for_its_works(future: Any) -> Any:
        for work in _works_of(future):
            work.wait()
        while not done(future) and (others := _opened_here()):
            _first_over(others).wait()
        return wait(future)

    def look_at_its_works(future: Any) -> bool:
        if not done(future):
            for work in _works_of(future) or _opened_here():
                work.is_completed()
        return done(future)

    def remember_its_works(future: Any, callback: Callable[[Any], Any]) -> Any:
        return _derived(then(future, callback), [future])

    def remember_their_works(futures: list[Any]) -> Any:
        return _derived(collect(futures), futures)

    def tensors_in(value: Any) -> list[torch.Tensor]:
        # DDP's reducer asks what a future holds, for which torch pickles it: 50 microseconds for a list of one tensor.
        plain = type(value) is list and all(type(each) is torch.Tensor for each in value)
        return value if plain else extract(value)

    usual.wait, usual.done, usual.then = wait_for_its_works, look_at_its_works, remember_its_works
    torch._C._collect_all, torch._jit_internal._extract_tensors = remember_their_works, tensors_in


def _derived(future: Any, sources: Iterable[Any]) -> Any:
    _origins[future] = [ref(work) for source in sources for work in _works_of(source)]
    return future


def _works_of(future: Any) -> list["SimWork"]:
    """The works of a future that are not done. One that is done may be freed although the future stays."""
    works = (work() for work in _origins.get(future, ()))
    return [work for work in works if work is not None and not work.finished]


def _opened_here() -> list["SimWork"]:
    """The possible works of a future that a callback completes, or that C++ has made: its real one is unknown."""
    return [work for work in list(_open) if work.thread == get_ident()]


def _first_over(works: list["SimWork"]) -> "SimWork":
    """One that is done; the rank waits until there is one."""
    while True:
        for work in works:
            if work.over():
                return work
        works[0].block_on(works)
