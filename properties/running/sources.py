"""The sources on which a verdict depends besides the seed.

These are the implementation's, found without importing it, Lockstep's own, and the installed packages.
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
_RESOLVED = tuple(folder.resolve() for folder in (PACKAGE, *_HOUSE))  # in a clone, the subpackages are symbolic links
_STANDARD = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
_Read = TypeVar("_Read")


def fingerprint(name: str) -> str:
    """A hash of all sources for the implementation "package.module:attribute" or "path/to/file.py:attribute".

    Installed packages count by their version, except for the implementation's own package.
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
    """The implementation's file and all files that it imports, directly or not, by module.

    Imports anywhere in a file count. Installed packages and Lockstep itself are left out.
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
    """True if a file is the user's. ``installed``: installed files count too."""
    resolved = path.resolve()
    if _INSTALLED & {*path.parts, *resolved.parts}:
        return installed
    return not any(resolved.is_relative_to(folder) for folder in (*_STANDARD, *_RESOLVED))


def _located(module: str) -> Iterator[tuple[str, Path]]:
    """The files of a module and of the packages that contain it, as far as they exist."""
    dotted, *rest = module.split(".")
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(dotted) if dotted else None
    except (ImportError, ValueError):  # a custom importer, or a module without a spec
        return
    while spec is not None:
        if spec.has_location and spec.origin is not None:
            yield dotted, Path(spec.origin)
        if not rest or not spec.submodule_search_locations:
            return
        dotted += "." + rest.pop(0)
        # PathFinder's `find_spec`, because the one of importlib.util would import the package.
        spec = PathFinder.find_spec(dotted, spec.submodule_search_locations)


def _absolute(imported: str, module: str, path: Path) -> str:
    """The full name of a module that is imported in another one. Leading dots stand for packages."""
    name = imported.lstrip(".")
    if (level := len(imported) - len(name)) == 0:
        return name
    up = level - (path.stem == "__init__")
    return ".".join([*module.split(".")[: -up or None], name])


def _read(path: Path, as_what: Callable[[Path, int, int], _Read]) -> _Read | None:
    """The content of a file, read again only if the file has changed; None if it cannot be read."""
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
        elif isinstance(node, ast.ImportFrom):  # a name imported from a package may be a module
            begin = "." * node.level + (f"{node.module}." if node.module else "")
            imports |= {begin + alias.name for alias in node.names}
    return frozenset(imports)
