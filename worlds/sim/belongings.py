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

    def take_out(self) -> None:
        if self._generator.signature() != self._signature:
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


class Belongings:
    """A rank's random numbers and environment: put away when it gives the baton up, taken out when it has it again.

    ``others``: those of the run, by rank.
    """

    def __init__(self, rank: int, world_size: int, others: "dict[int, Belongings]") -> None:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
        self._environment = _inherited | {os.fsencode(name): b"%d" % value for name, value in own.items()}
        self._others, self._modules = others, 0
        self._random = torch.default_generator.get_state()
        self._generators = [_Kept(*each) for each in _at_the_beginning()]
        others[rank] = self

    def put_away(self) -> None:
        """Remembers what the process has."""
        self._random = torch.default_generator.get_state()
        for kept in self._generators:
            kept.put_away()
        if _environment != self._environment:
            before, self._environment = self._environment, dict(_environment)
            if len(sys.modules) != self._modules:
                self._share(before)

    def _share(self, before: dict[bytes, bytes]) -> None:
        """What a module sets when it is imported, which here it is but once, is set for all ranks and examples."""
        news = {name: value for name, value in self._environment.items() if before.get(name) != value}
        for environment in (_inherited, *(other._environment for other in self._others.values())):
            environment.update(news)

    def take_out(self) -> None:
        """Makes this rank's what the process has."""
        torch.default_generator.set_state(self._random)
        for kept in self._generators:
            kept.take_out()
        if _environment != self._environment:
            for name in _environment.keys() - self._environment.keys():
                del os.environ[os.fsdecode(name)]
            for name, value in self._environment.items():
                if _environment.get(name) != value:
                    os.environ[os.fsdecode(name)] = os.fsdecode(value)
        self._modules = len(sys.modules)
