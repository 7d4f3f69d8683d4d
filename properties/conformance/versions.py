"""The page that shows torch's rows and findings for each version of torch."""

import json
from collections.abc import Mapping
from pathlib import Path

from lockstep.properties.conformance.holding import place_of
from lockstep.properties.conformance.rows import ROWS, Row
from lockstep.properties.implementations import Unusable
from lockstep.properties.pages import findings
from lockstep.properties.results.document import Document, LawEnd, read
from lockstep.properties.verdict import HOLDS, NOT_CLAIMED

MINORS = ("2.11", "2.12", "2.13", "2.14")
# Beside the scripts; holds a date, and for each version the exit code of each script.
SCRIPTS = Path("torch-versions.json")
ENDS = {1: "there", 0: "not there"}
HEAD = """# Versions of torch

## Rows

Each cell is all laws of a row together with a version of torch: they hold, or they are broken, with the families that
the defects break. Few programs were drawn, so "holds" is weak evidence. `lockstep conformance diff` tells two
versions apart law by law, where `docs/conformance/torch-2.14` is such a report as `docs/conformance` is:

    lockstep conformance diff docs/conformance docs/conformance/torch-2.14
"""
MIDDLE = """
## Findings

Each script of a [finding](../findings/torch.md) was run with each version. One defect shows itself by chance: a rank
that has run out says at random which parameters are used.

    python -m lockstep.properties.tests.run_findings docs/findings/torch/*.py --into docs/findings/torch-versions.json
"""


def folder_of(minor: str, folder: Path) -> Path:
    """The folder of the report for another torch version, inside the folder of the main report."""
    return folder / f"torch-{minor}"


def page(folder: Path) -> str:
    """The text of the page."""
    rows = [row for row in ROWS if row.framework == "torch"]
    found = {minor: _documents(rows, folder_of(minor, folder)) for minor in MINORS}
    for row, document in _documents(rows, folder).items():  # each under the torch version with which it was run
        minor = ".".join(document.versions.get("torch", "").split(".")[:2])
        found.setdefault(minor, {})[row] = document
    lines = [HEAD, f"| row | {' | '.join(MINORS)} |", "| --- " * (1 + len(MINORS)) + "|"]
    for row in rows:
        cells = [cell(found[minor].get(row)) for minor in MINORS]
        lines.append(f"| [{row.name}](torch.md#{row.name.lower()}) | {' | '.join(cells)} |")
    lines.append("")
    lines += [line for minor in MINORS for line in _about(found[minor])]
    return "\n".join([*lines, *_scripts()]) + "\n"


def _documents(rows: list[Row], folder: Path) -> dict[Row, Document]:
    there = {}
    for row in rows:
        try:
            there[row] = read(place_of(row, folder))
        except Unusable:
            continue
    return there


def cell(document: Document | None) -> str:
    """The result of a row with one version."""
    if document is None:
        return "not run"
    laws = [law for target in document.targets for law in target.laws if law.verdict != NOT_CLAIMED]
    defects = [each for target in document.targets for each in target.defects]
    told = [f"**{each.verdict}** {' '.join(_families(each.id, laws))}".strip() for each in defects]
    held = [law for law in laws if law.verdict.startswith(HOLDS)]
    words = "; ".join(told) or (f"holds on {sum(law.runs for law in held)}" if held else "not judged")
    return f"{words}, stopped" if document.stopped else words


def _families(defect: str, laws: list[LawEnd]) -> list[str]:
    return list(dict.fromkeys(law.law.split()[0] for law in laws if defect in law.defects))


def _about(documents: Mapping[Row, Document]) -> list[str]:
    """A line on when and how the rows of a version were run."""
    if not documents:
        return []
    of = documents.values()
    versions, dates = ({each.versions.get("torch", "") for each in of}, {each.started[:10] for each in of})
    told = [" and ".join(sorted(each)) for each in (versions, {each.profile for each in of}, dates)]
    return [f"- torch {told[0]}: {told[1]}, {told[2]}"]


def _scripts() -> list[str]:
    """The lines on the scripts, by version; empty if no script was run."""
    place = findings.FOLDER / SCRIPTS
    if not place.is_file():
        return []
    kept = json.loads(place.read_text("utf-8"))
    versions = sorted(kept["ends"], key=lambda told: tuple(map(int, told.partition("+")[0].split("."))))
    lines = [MIDDLE, f"| finding | {' | '.join(versions)} |", "| --- " * (1 + len(versions)) + "|"]
    for each in findings.findings():
        if each.path.parent.name == "torch":
            ends = [kept["ends"][version].get(each.path.stem) for version in versions]
            cells = ["not run" if end is None else ENDS.get(end, "cannot run") for end in ends]
            lines.append(f"| [{each.title}]({findings.link(each)}) | {' | '.join(cells)} |")
    return [*lines, "", f"Run on {kept['date']}."]
