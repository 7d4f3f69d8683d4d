"""The sources on which a verdict depends besides the seed: that of the implementation, found without importing it,
that of Lockstep, and the installed packages.
"""

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TypeVar

from lockstep.home import PACKAGE

_HOUSE = tuple(PACKAGE / package for package in ("impls", "oracle", "properties", "worlds"))
_RESOLVED = tuple(folder.resolve() for folder in (PACKAGE, *_HOUSE))  # in a clone the latter are links
_STANDARD = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
_Read = TypeVar("_Read")


def fingerprint(name: str) -> str:
    """A hash of all of it, for the implementation that "package.module:attribute" or "path/to/file.py:attribute" names.

    What is installed counts by its version, but for the implementation's own package.
    """
    files = {str(path.relative_to(PACKAGE)): path for folder in _HOUSE for path in folder.rglob("*.py")}
    files |= sources(name)
    folders = {Path(entry or ".") for entry in sys.path}
    installed = {found.name for folder in folders for found in folder.glob("*.dist-info")}
    told = [sys.version, *sorted(installed)]
    told += [f"{module} {_read(path, _hashed)}" for module, path in sorted(files.items())]
    return digest("\n".join(told))


def digest(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def sources(name: str) -> dict[str, Path]:
    """By module: the implementation's file, and those of what it imports, wherever in the file, and so on. Not those
    that are installed or Lockstep's.
    """
    place = name.rpartition(":")[0]
    own = place.partition(".")[0]
    found: dict[str, Path] = {}
    files = [(Path(place).stem, Path(place))] if place.endswith(".py") else list(_located(place))
    while files:
        module, path = files.pop()
        if module not in found and _counts(path, installed=module.partition(".")[0] == own):
            found[module] = path
            for imported in _read(path, _imports) or ():
                files += _located(_absolute(imported, module, path))
    return found


def _counts(path: Path, installed: bool) -> bool:
    """True if a file is the user's; ``installed``: what is installed counts too."""
    resolved = path.resolve()
    if _INSTALLED & {*path.parts, *resolved.parts}:
        return installed
    return not any(resolved.is_relative_to(folder) for folder in (*_STANDARD, *_RESOLVED))


def _located(module: str) -> Iterator[tuple[str, Path]]:
    """The files of a module and of the packages that it is in, as far as there are any."""
    dotted, *rest = module.split(".")
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(dotted) if dotted else None
    except (ImportError, ValueError):  # somebody's own way of importing, or a module that does not say
        return
    while spec is not None:
        if spec.has_location and spec.origin is not None:
            yield dotted, Path(spec.origin)
        if not rest or not spec.submodule_search_locations:
            return
        dotted += "." + rest.pop(0)
        # Of importlib's own: that of importlib.util would import the package.
        spec = PathFinder.find_spec(dotted, spec.submodule_search_locations)


def _absolute(imported: str, module: str, path: Path) -> str:
    """A module's name in full, as an import in that module means it: a dot in front stands for its package."""
    name = imported.lstrip(".")
    if (level := len(imported) - len(name)) == 0:
        return name
    up = level - (path.stem == "__init__")
    return ".".join([*module.split(".")[: -up or None], name])


def _read(path: Path, as_what: Callable[[Path, int, int], _Read]) -> _Read | None:
    """The content of a file, read once for as long as it does not change; None if it cannot be read."""
    try:
        state = path.stat()
        return as_what(path, state.st_mtime_ns, state.st_size)
    except OSError:
        return None


@functools.cache
def _hashed(path: Path, changed: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _imports(path: Path, changed: int, size: int) -> frozenset[str]:
    imports = set[str]()
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes()))) if path.suffix == ".py" else []
    except (SyntaxError, ValueError, RecursionError):
        nodes = []
    for node in nodes:
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):  # what is imported from a package may be a module
            begin = "." * node.level + (f"{node.module}." if node.module else "")
            imports |= {begin + alias.name for alias in node.names}
    return frozenset(imports)
