"""Global variables and class attributes of an implementation, kept apart by rank.

Each rank has its own values. A name that it binds anew is bound for it alone. A container is copied for each rank, as
long as only these names and such containers refer to it. If anything else refers to a container, such as a default
argument, that reference would keep the shared one, so the container stays shared.
"""

import collections
import functools
import gc
import inspect
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from lockstep.worlds.sim.meeting import current

# How a container is copied, its items by a function.
_COPIES: Mapping[type, Callable[[Any, Callable[[Any], Any]], Any]] = {
    dict: lambda old, of: {key: of(value) for key, value in old.items()},
    list: lambda old, of: [of(value) for value in old],
    set: lambda old, of: set(old),
    collections.deque: lambda old, of: collections.deque(map(of, old), old.maxlen),
    collections.OrderedDict: lambda old, of: collections.OrderedDict((key, of(value)) for key, value in old.items()),
    collections.Counter: lambda old, of: collections.Counter(old),
    collections.defaultdict: lambda old, of: collections.defaultdict(
        old.default_factory, {key: of(value) for key, value in old.items()}
    ),
    itertools.count: lambda old, of: itertools.count(*old.__reduce__()[1]),
    functools._lru_cache_wrapper: lambda old, of: functools.lru_cache(**old.cache_parameters())(old.__wrapped__),
}


def keep_apart(modules: Callable[[], list[ModuleType]]) -> None:
    """From now on each rank has what these modules hold to itself, if the job asks for that; what they hold now is what
    every rank begins with. To find them takes milliseconds, and is put off until a job asks.
    """
    run = getattr(current, "run", None)
    if run is not None and run.job.own_state and run.belongings.possessions is None:
        run.belongings.possessions = Possessions(modules())
        run.belongings.possessions.take_out(current.rank)


class Possessions:
    """The variables of some modules, and of the classes that they define, by rank."""

    def __init__(self, modules: list[ModuleType]) -> None:
        names = {module.__name__ for module in modules}
        kinds = [each for module in modules for each in vars(module).values() if inspect.isclass(each)]
        kinds = [each for each in kinds if each.__module__ in names]
        self._homes: list[Any] = [*modules, *dict.fromkeys(kinds)]
        self._first = [_held(home) for home in self._homes]
        self._copied = self._unshared()
        self._by_rank: dict[int, list[dict[str, Any]]] = {}

    def put_away(self, rank: int) -> None:
        """Remembers what a rank has."""
        self._by_rank[rank] = [_held(home) for home in self._homes]

    def take_out(self, rank: int) -> None:
        """Makes what a rank has what there is."""
        if rank not in self._by_rank:
            copies: dict[int, Any] = {}
            self._by_rank[rank] = [
                {name: self._own(each, copies) for name, each in held.items()} for held in self._first
            ]
        self._put(self._by_rank[rank])

    def give_back(self) -> None:
        """Makes what there was at the beginning what there is, and forgets all."""
        self._put(self._first)
        self._first, self._by_rank, self._homes = [], {}, []

    def _put(self, wanted: list[dict[str, Any]]) -> None:
        for home, values in zip(self._homes, wanted, strict=True):
            there, is_class = _held(home), inspect.isclass(home)
            put, take = (type.__setattr__, type.__delattr__) if is_class else (setattr, delattr)
            for name in there.keys() - values.keys():
                take(home, name)
            for name, value in values.items():
                if name not in there or there[name] is not value:
                    put(home, name, value)

    def _own(self, value: Any, copies: dict[int, Any]) -> Any:
        """A rank's own copy of a value, where it has one; ``copies`` has those that are made."""
        if id(value) not in self._copied:
            return value
        if id(value) not in copies:
            copies[id(value)] = _COPIES[type(value)](value, partial(self._own, copies=copies))
        return copies[id(value)]

    def _unshared(self) -> set[int]:
        """The ids of the containers to which nothing refers but names of these modules and classes, and one another."""
        found: dict[int, Any] = {}
        waiting = [value for held in self._first for value in held.values()]
        while waiting:
            value = waiting.pop()
            if type(value) in _COPIES and id(value) not in found:
                found[id(value)] = value
                waiting += [] if type(value) is functools._lru_cache_wrapper else gc.get_referents(value)
        ours = {id(_space(home)) for home in self._homes} | {id(each) for each in (found, waiting, *self._first)}
        referring = gc.get_referrers(*found.values()) if found else []
        beyond = [each for each in referring if id(each) not in ours | found.keys() and not inspect.isframe(each)]
        while beyond:  # what is shared stays as it is, and so does what it holds
            shared = {id(each) for other in beyond for each in gc.get_referents(other)} & found.keys()
            beyond = [found.pop(each) for each in shared]
        return set(found)


def _space(home: Any) -> Any:
    """The dictionary in which a module or a class has what it holds."""
    return gc.get_referents(vars(home))[0] if inspect.isclass(home) else vars(home)


def _held(home: Any) -> dict[str, Any]:
    """The variables of a module or class by name, without Python's own and without modules, which are imported once."""
    return {
        name: value
        for name, value in vars(home).items()
        if not (name.startswith("__") and name.endswith("__")) and not isinstance(value, ModuleType)
    }
