"""The pages of the findings: the defects that Lockstep has found in other code, each with its script.

Every script in docs/findings begins with a docstring: the title, then one paragraph for each of `PARTS`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.home import HOME

FOLDER = Path(HOME) / "docs" / "findings"
PARTS = ("Framework", "Law", "Program", "Why", "Documented", "Reports")
PROGRAM = re.compile(r"^LIMIT = [^\n]*\n+(.*?)\n+# The same in every finding\.", re.MULTILINE | re.DOTALL)
REPORT = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)")
HEAD = """# Findings

Lockstep has found these defects in code that many people use. Each is a script that needs the framework and not
Lockstep. A script runs the smallest program that shows the defect, prints what each rank must give and what it gives,
and exits with 1 while the defect is there.

```
pip install torch==2.13.0
python docs/findings/torch/fsdp1-infinity-norm-never-falls-again.py
```

A test runs the scripts for torch in the ordinary suite, and `tox -e frameworks` runs all of them against the versions
that `lockstep-dp[frameworks]` pins. The test fails when a release mends a defect. What was seen and is no defect, or
cannot be installed from a package index, stands in [notes](notes.md).

| framework | defects | laws |
| --- | ---: | --- |
"""
INTRODUCTION = """# Findings in {name}

Made from the scripts in `docs/findings/{name}` by `python -m lockstep.properties.pages`. To see a defect, install the
version that it names, and run its script: `python docs/findings/{name}/SCRIPT.py`.
"""


@dataclass(frozen=True)
class Finding:
    """A defect: the path of its script, its title, the paragraph for each of `PARTS`, and the code of its program."""

    path: Path
    title: str
    parts: Mapping[str, str]
    program: str


def findings() -> Iterator[Finding]:
    """All findings, framework by framework. Raises ValueError for a script whose docstring lacks a part."""
    for path in sorted(FOLDER.glob("*/*.py")):
        text = path.read_text()
        title, *paragraphs = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")
        parts = dict(" ".join(each.split()).split(": ", 1) for each in paragraphs)
        program = PROGRAM.search(text)
        if tuple(parts) != PARTS or program is None:
            raise ValueError(f"{path} must tell, in this order: {', '.join(PARTS)}")
        yield Finding(path, title, parts, program.group(1))


def as_written() -> dict[Path, str]:
    """The text of each page by its path."""
    by_name: dict[str, list[Finding]] = {}
    for each in findings():
        by_name.setdefault(each.path.parent.name, []).append(each)
    rows = (_row(name, found) for name, found in by_name.items())
    pages = {FOLDER / "index.md": HEAD + "".join(rows)}
    for name, found in by_name.items():
        pages[FOLDER / f"{name}.md"] = INTRODUCTION.format(name=name) + "".join(map(_section, found))
    return pages


def _row(name: str, found: list[Finding]) -> str:
    """A framework's row of the table."""
    laws = {law for each in found for law in each.parts["Law"].split(", ")}
    told = ", ".join(sorted(laws, key=lambda law: int(law[1:])))
    return f"| [{name}]({name}.md) | {len(found)} | {told} |\n"


def _section(found: Finding) -> str:
    """The section of a finding: everything in its script's docstring, and its program."""
    laws = ", ".join(f"[{law}](../laws/{law}.md)" for law in found.parts["Law"].split(", "))
    told = {**found.parts, "Law": laws, "Reports": REPORT.sub(_link, found.parts["Reports"])}
    lines = "".join(f"- **{part}**: {words}\n" for part, words in told.items() if part not in ("Program", "Why"))
    script = f"[{found.path.name}]({found.path.parent.name}/{found.path.name})"
    words = f"{found.parts['Program']}\n\n```python\n{found.program}\n```\n\n{found.parts['Why']}\n\n{lines}"
    return f"\n## {found.title}\n\n{words}- **Script**: {script}\n"


def _link(report: "re.Match[str]") -> str:
    """A report as a link to its page."""
    repository, number = report.groups()
    return f"[{repository}#{number}](https://github.com/{repository}/issues/{number})"


def link(found: Finding) -> str:
    """The link to a finding's section, relative to a folder beside that of the findings."""
    slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", found.title).strip().lower())
    return f"../findings/{found.path.parent.name}.md#{slug}"
