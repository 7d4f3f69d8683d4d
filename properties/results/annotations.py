"""Marks at the lines of a pull request. GitHub reads them from the log of a workflow."""

import ast
import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from lockstep.properties.results.document import Defect, Document


def are_read() -> bool:
    """True if this process runs in a GitHub workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotations(document: Document) -> Iterator[str]:
    """A line for each defect, at the class or function that has it: an error, or a notice if the defect is known."""
    for target in document.targets:
        where = "".join(f"{key}={_escaped(str(value), ':,')}," for key, value in _place(target.name).items())
        for defect in target.defects:
            title = _escaped(f"{target.name.rpartition(':')[2]}: {defect.verdict} ({defect.law})", ":,")
            kind, words = ("notice", f"known: {defect.known}") if defect.known else ("error", _result(defect))
            yield f"::{kind} {where}title={title}::{_escaped(words)}"
    for each in document.mended:
        yield f"::error title=A known failure is mended::{_escaped(each)}"


def _result(defect: Defect) -> str:
    """The report, without its first line, which is the title."""
    return defect.report.partition("\n")[2].strip() or defect.report


def _escaped(text: str, also: str = "") -> str:
    return "".join(f"%{ord(each):02X}" if each in f"%\r\n{also}" else each for each in text)


def _place(target: str) -> dict[str, object]:
    """The file and line at which a target is defined, found without importing it. Empty if they cannot be found."""
    module, _, attribute = target.rpartition(":")
    path = Path(module) if module.endswith(".py") else None
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        if path is None and (spec := find_spec(module)) is not None and spec.origin is not None:
            path = Path(spec.origin)
    if path is None or not path.is_file():
        return {}
    workspace = Path(os.environ.get("GITHUB_WORKSPACE", ".")).resolve()
    inside = path.resolve().relative_to(workspace) if path.resolve().is_relative_to(workspace) else path
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute.rpartition(".")[2]
    ]
    return {"file": inside, **({"line": lines[0]} if lines else {})}
