"""What is to lead a stranger through the repository leads everywhere, and nowhere else."""

import ast
import re
from pathlib import Path

import pytest

from lockstep.properties import reported
from lockstep.properties.catalogue import every_law

ROOT = Path(__file__).parents[3]
# Those whose docstring lists their modules, each at the beginning of a line, alone or with others. In the packages of
# faults, twins and frameworks, names say enough.
MAPPED = (
    "benchmarks",
    "impls",
    "impls/kernels",
    "oracle",
    "properties",
    "properties/judging",
    "properties/kernels",
    "properties/models",
    "properties/ranks",
    "properties/diagnosing",
    "properties/reports",
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


def test_the_readme_lists_every_law_with_the_file_that_it_is_in() -> None:
    listed = dict(re.findall(r"(P\d+)  [a-z].*?  (test_\w+)\.py", (ROOT / "README.md").read_text()))
    assert sorted(listed) == sorted({law.number for law in every_law().values()} | {"P17"})  # P17: laws of kernels
    files = {path.stem: path.read_text() for path in (ROOT / "properties").glob("test_*.py")}
    assert {*listed.values(), "test_combinations", "test_joins", "test_models", "test_optimizers"} == set(files)
    for number, name in listed.items():
        assert files[name].startswith(f'"""{number}: ')


def test_the_page_of_published_defects_is_as_it_would_be_written() -> None:
    assert reported.PAGE.read_text() == reported.page()
