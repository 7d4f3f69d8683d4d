"""What is to lead a stranger through the repository leads everywhere, and nowhere else."""

import ast
import re
from pathlib import Path

import pytest

from lockstep.properties import reported
from lockstep.properties.catalogue import every_text
from lockstep.properties.law import FAMILIES
from lockstep.properties.pages import claims, findings, laws

ROOT = Path(__file__).parents[3]
# Those whose docstring lists their modules, each at the beginning of a line, alone or with others. In the packages of
# faults, twins and frameworks, names say enough.
MAPPED = (
    "benchmarks",
    "impls",
    "impls/kernels",
    "oracle",
    "properties",
    "properties/data",
    "properties/defects",
    "properties/experts",
    "properties/judging",
    "properties/kernels",
    "properties/loops",
    "properties/models",
    "properties/pages",
    "properties/ranks",
    "properties/diagnosing",
    "properties/reports",
    "properties/results",
    "properties/running",
    "properties/script",
    "properties/searching",
    "properties/strategies",
    "worlds",
    "worlds/sim",
)


@pytest.mark.parametrize("package", MAPPED)
def test_a_package_names_each_of_its_modules(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    lines = re.findall(r"^ *(\w+(?:, \w+)*) {2,}\S", docstring, re.MULTILINE)
    named = [name for line in lines for name in line.split(", ")]
    paths = [*(ROOT / package).glob("*.py"), *(path.parent for path in (ROOT / package).glob("*/__init__.py"))]
    there = {path.stem for path in paths if not path.stem.startswith(("_", "test_"))} - {"tests"}
    assert sorted(named) == sorted(there)


def test_every_law_is_on_the_page_of_its_family() -> None:
    assert list(FAMILIES) == list(dict.fromkeys(number for number, *_ in every_text()))


def test_the_pages_made_from_the_code_are_as_they_would_be_written() -> None:
    for path, text in {**laws.as_written(), **claims.as_written(), **findings.as_written()}.items():
        assert path.read_text() == text, "python -m lockstep.properties.pages"


def test_the_page_of_published_defects_is_as_it_would_be_written() -> None:
    assert reported.PAGE.read_text() == reported.page()
