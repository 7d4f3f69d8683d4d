"""Every law, fault and twin, found by walking the packages. Nothing is registered anywhere."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from lockstep.properties.law import Law, turn


def _modules(package: str, prefix: str = "") -> Iterator[ModuleType]:
    """The modules directly in a package whose names have this prefix; none if there is no such package."""
    folders = importlib.import_module(package).__path__ if find_spec(package) else ()
    for found in sorted(pkgutil.iter_modules(folders), key=lambda each: each.name):
        if found.name.startswith(prefix) and not found.ispkg:
            yield importlib.import_module(f"{package}.{found.name}")


@cache
def every_law() -> dict[str, Law]:
    """The laws of data parallelism by the names of their tests, in the order of their numbers."""
    tests = [test for module in _modules("lockstep.properties", "test_") for test in vars(module).values()]
    laws = {test.law.name: test.law for test in tests if isinstance(getattr(test, "law", None), Law)}
    return dict(sorted(laws.items(), key=lambda pair: int(pair[1].number[1:])))


@cache
def plainest_first() -> tuple[Law, ...]:
    """The laws of data parallelism in the order in which they are checked."""
    return tuple(sorted(every_law().values(), key=turn))


@cache
def every_kernel_law() -> dict[str, Any]:
    """The tests of the laws on kernels, P17, by their names."""
    tests = [test for module in _modules("lockstep.properties", "test_") for test in vars(module).values()]
    return {test.__name__: test for test in tests if hasattr(test, "kernel_law")}


@cache
def every_text() -> tuple[tuple[str, str, str], ...]:
    """The number, test name and docstring of each law, including those on kernels, in the order of numbers."""
    told = [(law.number, law.name, law.says) for law in every_law().values()]
    told += [("P17", name, test.__doc__ or "") for name, test in every_kernel_law().items()]
    return tuple(sorted(told, key=lambda each: int(each[0][1:])))


def laws_named(words: str) -> list[str]:
    """The names of the tests of the laws with this number, for example "P6", or with these words in their names."""
    named = "_".join(words.lower().split())
    return [name for number, name, _ in every_text() if words.upper() == number or named in name]


@cache
def every_fault() -> dict[str, Any]:
    """Every fault in `impls`: a class with ``killed_by``, by the name that ``--impl`` takes."""
    return _declaring("killed_by")


@cache
def every_twin() -> dict[str, Any]:
    """Every twin in `impls`: a correct class with ``odd``, its oddity in words, by the name that ``--impl`` takes."""
    return _declaring("odd")


def _declaring(attribute: str) -> dict[str, Any]:
    return {
        f"{module.__name__}:{name}": found
        for package in ("lockstep.impls", "lockstep.impls.faults", "lockstep.impls.twins")
        for module in _modules(package)
        for name, found in vars(module).items()
        if getattr(found, "__module__", None) == module.__name__ and attribute in getattr(found, "__dict__", ())
    }
