"""The name by which ranks find a target: a class or a function."""

import inspect
import operator
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.properties.implementations import Unusable
from lockstep.properties.ranks.lookup import give


def name_of(target: str | Callable[..., Any]) -> str:
    """The name of a target: "package.module:attribute", or "path/to/file.py:attribute" if it cannot be imported by
    module.

    A class or function that exists in this process alone, for example in a notebook, gets a name valid in this process.
    Raises Unusable.
    """
    if isinstance(target, str):
        return target
    if not callable(target):
        raise Unusable(f"{target!r} cannot be called: give a class or a function that takes the module to wrap")
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    attribute = getattr(target, "__qualname__", "")
    if module is not None and attribute and _in(module, attribute) is target:
        file = getattr(module, "__file__", None)
        if module.__name__ != "__main__" and file is not None:
            return f"{module.__name__ if _is_imported_as(module.__name__, file) else file}:{attribute}"
    shown = attribute.rpartition(".")[2] or type(target).__name__
    return give(getattr(target, "__module__", None) or "__main__", shown, target)


def _in(module: ModuleType, attribute: str) -> Any:
    """The object with a dotted name in a module; None if there is none."""
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        return None


def why_only_here(target: Any) -> str:
    """The reason why no other process can import a target, worded as the end of a sentence."""
    if inspect.isclass(target) or inspect.isfunction(target):
        if "<locals>" in target.__qualname__ or target.__name__ == "<lambda>":
            return "it is defined inside a function"
        return f"it is defined in {target.__module__}"
    return "it is no class or function of a module"


def _is_imported_as(name: str, file: str) -> bool:
    """True if another process that imports this name gets this file."""
    spec: ModuleSpec | None = None
    path: Any = None
    for end in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:end])
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        spec = next((found for find in finders if find and (found := find(part, path))), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve()
