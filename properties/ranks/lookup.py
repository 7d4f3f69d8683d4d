"""Find an implementation by its name, or one that was registered in this process under a name of its own."""

import functools
import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.home import HOME
from lockstep.properties.claim import on_one_line
from lockstep.properties.ranks import cuda_stubs


class NotFound(ValueError):
    """The object of a name does not exist. The message, one line, says what is missing and what would be right."""


_given: dict[str, Callable[..., Any]] = {}


def give(module: str, attribute: str, implementation: Callable[..., Any]) -> str:
    """Register an object that other processes cannot import. The returned name is valid in this process alone."""
    number = 1
    while (name := f"{module}{f' {number}' * (number > 1)}:{attribute}") in _given:
        number += 1  # for example in a notebook, if the cell that defines a class is run again
    _given[name] = implementation
    return name


def is_given(name: str) -> bool:
    """True if the name means an object of this process alone."""
    return name in _given


@functools.lru_cache
def find(name: str) -> Callable[..., Any]:
    """The class or factory that "package.module:attribute" or "path/to/file.py:attribute" names."""
    from lockstep.properties.ranks.optimizers import met
    from lockstep.worlds.settings import importing  # imports torch, which is not needed to handle names

    if name in _given:
        return met(_given[name])
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise NotFound(f"{name}: write package.module:attribute or path/to/file.py:attribute")
    with importing():
        cuda_stubs.install()
        module = _load_file(place) if place.endswith(".py") else _import(place, name)
    try:
        found = operator.attrgetter(attribute)(module)  # a class may be nested in another
    except AttributeError:
        public = sorted(
            key for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        )
        there = f"; it defines {', '.join(public)}" if public else ""
        raise NotFound(f"{name}: {place} has no attribute {attribute!r}{there}") from None
    if not callable(found):
        wanted = "name a class or a function that takes the module"
        raise NotFound(f"{name}: {attribute} is {on_one_line(found)}, which cannot be called; {wanted}")
    return met(found)


def _import(place: str, name: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (place == missing.name or place.startswith(missing.name + ".")):
            raise NotFound(f"{name}: there is no module {missing.name!r} on sys.path") from None
        raise NotFound(f"{name}: importing {place} failed: {missing}") from missing
    except (Exception, SystemExit) as error:
        raise NotFound(f"{name}: importing {place} failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """The error of an import in one line. Python's own message names an unreadable file without its folder."""
    words = str(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        words = f"{error.msg} ({error.filename}, line {error.lineno})"
    return ": ".join(filter(None, (type(error).__name__, " ".join(words.split()))))


def _in_a_package(path: Path, error: BaseException) -> str:
    """The right name for a file that uses relative imports; empty if that is not the problem."""
    if "relative import" not in str(error):
        return ""
    package = path.resolve().parent
    parts = [path.stem]
    while (package / "__init__.py").is_file():
        parts.insert(0, package.name)
        package = package.parent
    return f"; it is part of a package: write {'.'.join(parts)}:..., from the folder {package}" if parts[1:] else ""


def _load_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise NotFound(f"{place}: there is no such file")
    # A unique name: files in two folders, or another module, may have the same one.
    name = f"{path.stem} in {path.resolve().parent}"
    if name not in sys.modules:
        beside = str(path.resolve().parent)
        if beside not in sys.path:
            # Near the end of the path: the file's imports are found there, but hide nothing except a clone of Lockstep.
            sys.path.insert(sys.path.index(HOME) if HOME in sys.path[-1:] else len(sys.path), beside)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise NotFound(f"{place}: running the file failed: {_told(error)}{_in_a_package(path, error)}") from error
    return sys.modules[name]


@functools.lru_cache
def takes(name: str, argument: str) -> bool:
    """True if the constructor of the named implementation has an argument of that name."""
    try:
        return argument in inspect.signature(find(name)).parameters
    except (TypeError, ValueError):
        return False
