"""State that each rank would own as a process, kept apart although the simulated ranks share one process."""

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from lockstep.worlds.sim.generators import Generator, NumPyGenerator, PythonGenerator, TorchGenerator

if TYPE_CHECKING:
    from lockstep.worlds.sim.possessions import Possessions


@cache
def _generators() -> tuple[Generator, ...]:
    return PythonGenerator(), NumPyGenerator(), TorchGenerator()


def _signatures() -> tuple[object, ...]:
    python, numpy, torch = _generators()
    return python.signature(), numpy.signature(), torch.signature()


@cache
def _at_the_beginning() -> tuple[tuple[object, ...], list[object]]:
    """The signatures and states in which every example begins."""
    for generator in _generators():
        generator.seed()
    return _signatures(), [generator.state() for generator in _generators()]


_environment = os.environ._data  # type: ignore[attr-defined]
_inherited = dict(_environment)  # what every rank begins with


def inherit() -> None:
    """Give every rank from now on the environment that this process has. A fork server has imported this module before,
    with what the environment was then.
    """
    _inherited.clear()
    _inherited.update(_environment)


class Household:
    """The belongings of all ranks of a run.

    out            those that the process has, or had last; None before any have been
    differing      the variables of the environment that are not the same for all ranks
    possessions    the variables of an implementation's modules, if a job asks for ranks with state of their own
    """

    possessions: "Possessions | None" = None

    def __init__(self) -> None:
        self.by_rank: dict[int, Belongings] = {}
        self.out: Belongings | None = None
        self.differing = dict.fromkeys((b"RANK", b"LOCAL_RANK", b"WORLD_SIZE"))  # in an order, unlike a set


class Belongings:
    """A rank's random numbers and environment: saved when it gives the baton up, set again when it gets it back."""

    def __init__(self, rank: int, world_size: int, household: Household) -> None:
        self._environment = _inherited | {
            b"RANK": b"%d" % rank,
            b"LOCAL_RANK": b"%d" % rank,
            b"WORLD_SIZE": b"%d" % world_size,
            b"LOCAL_WORLD_SIZE": b"%d" % world_size,
        }
        self._household, self._modules, self._rank = household, 0, rank
        self._signatures, self._states = _at_the_beginning()
        household.by_rank[rank] = self

    def put_away(self) -> None:
        """Remembers what the process has."""
        if self._household.possessions is not None:
            self._household.possessions.put_away(self._rank)
        now = _signatures()
        if now != self._signatures:
            self._states = [
                state if signature == before else generator.state()
                for generator, state, signature, before in zip(
                    _generators(), self._states, now, self._signatures, strict=True
                )
            ]
            self._signatures = _signatures()
        if _environment != self._environment:
            before, self._environment = self._environment, dict(_environment)
            changed = [name for name in before | self._environment if before.get(name) != self._environment.get(name)]
            self._household.differing |= dict.fromkeys(changed)
            if len(sys.modules) != self._modules:
                self._share(changed)

    def _share(self, changed: list[bytes]) -> None:
        """Share with all ranks and examples what a module sets when it is imported, which happens only once here."""
        news = {name: self._environment[name] for name in changed if name in self._environment}
        for environment in (_inherited, *(each._environment for each in self._household.by_rank.values())):
            environment.update(news)

    def take_out(self) -> None:
        """Makes this rank's what the process has."""
        if self._household.possessions is not None:
            self._household.possessions.take_out(self._rank)
        out, self._household.out = self._household.out, self
        there = _signatures() if out is None else out._signatures
        if self._signatures != there:
            for place, generator in enumerate(_generators()):
                if self._signatures[place] != there[place]:
                    generator.restore(self._states[place])
        for name in self._environment | _environment if out is None else self._household.differing:
            value = self._environment.get(name)
            if value is None:
                if _environment.pop(name, None) is not None:
                    os.unsetenv(name)
            elif _environment.get(name) != value:
                _environment[name] = value  # as os.environ does it, which would decode and encode
                os.putenv(name, value)
        self._modules = len(sys.modules)
