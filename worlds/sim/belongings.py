"""What each rank would own as a process, kept apart although the simulated ranks share one."""

import os
import sys
from functools import cache

import torch

from worlds.sim.generators import Generator, NumPyGenerator, PythonGenerator


class _Kept:
    """Where one rank is with one generator."""

    def __init__(self, generator: Generator, signature: object, state: object) -> None:
        self._generator, self._signature, self._state = generator, signature, state

    def put_away(self) -> None:
        now = self._generator.signature()
        if now != self._signature:
            self._state = self._generator.state()
            self._signature = self._generator.signature()

    def take_out(self, out: "_Kept | None") -> None:
        """``out``: that of the rank that put its own away last, so that the generator need not be looked at."""
        if self._signature != (self._generator.signature() if out is None else out._signature):
            self._generator.restore(self._state)


@cache
def _at_the_beginning() -> tuple[tuple[Generator, object, object], ...]:
    """The generators, each with the signature and state in which every example begins."""
    generators: list[Generator] = [PythonGenerator(), NumPyGenerator()]
    for generator in generators:
        generator.seed()
    return tuple((generator, generator.signature(), generator.state()) for generator in generators)


_environment = os.environ._data  # type: ignore[attr-defined]
_inherited = dict(_environment)  # what every rank begins with


class Household:
    """The belongings of all ranks of a run.

    ``out``: those that the process has, or had last; None before any have been. ``differing``: the variables of the
    environment that are not the same for all.
    """

    def __init__(self) -> None:
        self.by_rank: dict[int, Belongings] = {}
        self.out: Belongings | None = None
        self.differing = dict.fromkeys((b"RANK", b"LOCAL_RANK", b"WORLD_SIZE"))  # in an order, unlike a set


class Belongings:
    """A rank's random numbers and environment: put away when it gives the baton up, taken out when it has it again."""

    def __init__(self, rank: int, world_size: int, household: Household) -> None:
        self._environment = _inherited | {
            b"RANK": b"%d" % rank,
            b"LOCAL_RANK": b"%d" % rank,
            b"WORLD_SIZE": b"%d" % world_size,
        }
        self._household, self._modules = household, 0
        self._random = torch.default_generator.get_state()
        self._generators = [_Kept(*each) for each in _at_the_beginning()]
        household.by_rank[rank] = self

    def put_away(self) -> None:
        """Remembers what the process has."""
        self._random = torch.default_generator.get_state()
        for kept in self._generators:
            kept.put_away()
        if _environment != self._environment:
            before, self._environment = self._environment, dict(_environment)
            changed = [name for name in before | self._environment if before.get(name) != self._environment.get(name)]
            self._household.differing |= dict.fromkeys(changed)
            if len(sys.modules) != self._modules:
                self._share(changed)

    def _share(self, changed: list[bytes]) -> None:
        """What a module sets when it is imported, which here it is but once, is set for all ranks and examples."""
        news = {name: self._environment[name] for name in changed if name in self._environment}
        for environment in (_inherited, *(each._environment for each in self._household.by_rank.values())):
            environment.update(news)

    def take_out(self) -> None:
        """Makes this rank's what the process has."""
        out, self._household.out = self._household.out, self
        torch.default_generator.set_state(self._random)
        for place, kept in enumerate(self._generators):
            kept.take_out(None if out is None else out._generators[place])
        names = self._household.differing
        if out is None:
            names = dict.fromkeys(sorted(name for name, _ in self._environment.items() ^ _environment.items()))
        for name in names:
            value = self._environment.get(name)
            if value is None:
                if _environment.pop(name, None) is not None:
                    os.unsetenv(name)
            elif _environment.get(name) != value:
                _environment[name] = value  # as os.environ does it, which would decode and encode
                os.putenv(name, value)
        self._modules = len(sys.modules)
