"""The pages of the conformance report, made from the results of its rows and from the adapters."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lockstep.properties.catalogue import every_law
from lockstep.properties.conformance import versions
from lockstep.properties.conformance.holding import FOLDER, KNOWN, place_of
from lockstep.properties.conformance.rows import FRAMEWORKS, ROWS, Row
from lockstep.properties.implementations import Unusable
from lockstep.properties.law import FAMILIES
from lockstep.properties.pages.findings import Finding, findings, link
from lockstep.properties.results import known
from lockstep.properties.results.document import Defect, Document, LawEnd, Target, read
from lockstep.properties.results.known import Known
from lockstep.properties.verdict import HOLDS, IMPOSSIBLE, NOT_CLAIMED, REFUSES

HEAD = """# Conformance

Each row is an adapter of a framework in `impls/frameworks/`, held against every law of what the framework's
documentation promises. `lockstep conformance` runs the rows that are not there yet and writes this page, and
`lockstep conformance diff` compares two such folders. `docs/conformance/results` has the results of each row as data.

Few programs were drawn for each law, so "holds" is weak evidence. A defect that is known has a script that shows it
without Lockstep. Any other has not been examined yet, and may be a fault of the adapter.

A cell is a family of [laws](../laws/index.md):

- a number: all laws that are claimed hold; it is the number of programs on which they were judged
- a number and D1: they hold on programs without the defect D1, which the page of the framework tells
- **wrong**, **hangs**, **crashes** and a defect: a law was broken by it; wrong is *silently wrong*, or *wasteful*
- refuses: an error on every rank, before any harm
- ?: it could not be judged, as each program that the law needs has a known defect
- …: the run was stopped before all laws of the family had ended
- nothing: not claimed

[Versions of torch](torch-versions.md) stand side by side on a page of their own.
"""
MISSING = "…"
WORST = ("silently wrong", "wasteful", "hangs", "crashes")
SHORT = {"silently wrong": "wrong", "wasteful": "wrong"}
COLUMNS = tuple(number for number in FAMILIES if number != "P17")  # P17 is about kernels


@functools.cache
def _findings() -> tuple[Finding, ...]:
    """All findings, read once, because each defect of a page needs them."""
    return tuple(findings())


def results(folder: Path) -> dict[Row, Document]:
    """The existing results, by row."""
    found = {}
    for row in ROWS:
        try:
            found[row] = read(place_of(row, folder))
        except Unusable:
            continue
    return found


def as_written(folder: Path = FOLDER) -> dict[Path, str]:
    """The text of each page by its path."""
    documents = results(folder)
    entries = known.every(folder / KNOWN) if (folder / KNOWN).is_file() else ()
    pages = {folder / "index.md": index(documents)}
    for framework in FRAMEWORKS:
        rows = [row for row in ROWS if row.framework == framework]
        pages[folder / f"{framework}.md"] = page(framework, rows, documents, entries)
    if (folder / "results").is_dir():
        pages[folder / "torch-versions.md"] = versions.page(folder)
    return pages


def index(documents: Mapping[Row, Document]) -> str:
    """The page with the matrix of all rows."""
    lines = [
        HEAD,
        f"| framework | row | world | {' | '.join(COLUMNS)} |",
        "| --- " * 3 + "| ---: " * len(COLUMNS) + "|",
    ]
    for row in ROWS:
        link = f"[{row.name}]({row.framework}.md#{row.name.lower()})"
        cells = [""] * len(COLUMNS)
        world = "not run"
        if row in documents:
            (target,) = documents[row].targets or (Target(row.target),)
            cells, world = [cell(target, number, documents[row].stopped) for number in COLUMNS], row.world
        lines.append(f"| {row.framework} | {link} | {world} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_about(documents)]) + "\n"


def _about(documents: Mapping[Row, Document]) -> Iterator[str]:
    """The lines on when and how the rows were run."""
    if not documents:
        yield "No row has been run yet."
        return
    dates = sorted({each.started[:10] for each in documents.values()})
    yield f"Run on {_range(dates)}, {_listed({each.profile for each in documents.values()})} on sim, a tenth as many on"
    yield "gloo and of FSDP, and at least one; a program that is drawn for one law is judged by others too."
    yield f"Seed {_listed({each.seed for each in documents.values()})}. Lockstep"
    yield f"{_listed({each.lockstep for each in documents.values()})}, {_versions(documents.values())}."
    yield f"All rows together took {sum(each.seconds for each in documents.values()) / 60:.0f} minutes."
    stopped = [row.name for row, each in documents.items() if each.stopped]
    if stopped:
        yield f"Stopped before all laws had ended: {', '.join(stopped)}."


def _range(dates: list[str]) -> str:
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _listed(words: Iterable[str]) -> str:
    return " or ".join(sorted(words))


def _versions(documents: Iterable[Document]) -> str:
    found = sorted({f"{name} {version}" for each in documents for name, version in each.versions.items()})
    return ", ".join(found)


def cell(target: Target, number: str, stopped: bool = False) -> str:
    """The result of a family of laws for a row. ``stopped``: the run was stopped, so some laws may be missing."""
    there = [law for law in target.laws if law.law.split()[0] == number]
    missing = stopped and len(there) < sum(law.number == number for law in every_law().values())
    return (
        f"{_ended(target, [law for law in there if law.verdict != NOT_CLAIMED])} {MISSING if missing else ''}".strip()
    )


def _ended(target: Target, laws: Sequence[LawEnd]) -> str:
    """The common result of some laws."""
    broken = dict.fromkeys(name for law in laws for name in law.defects)
    if broken:
        defects = [each for each in target.defects if each.id in broken]
        verdicts = [next((word for word in WORST if word in each.verdict), each.verdict) for each in defects]
        worst = min(verdicts, key=lambda word: WORST.index(word) if word in WORST else len(WORST), default="broken")
        return f"**{SHORT.get(worst, worst)}** {' '.join(broken)}"
    others = {law.verdict for law in laws if not law.verdict.startswith((HOLDS, IMPOSSIBLE, REFUSES))}
    if others:
        return f"**{_listed(others)}**"
    if any(law.verdict == REFUSES for law in laws):
        return REFUSES
    held = [law for law in laws if law.verdict.startswith(HOLDS)]
    if not held:
        return "?" if laws else ""
    apart = dict.fromkeys(name for law in held for name in law.left_out)
    return " ".join([str(sum(law.runs for law in held)), *apart])


def page(framework: str, rows: Iterable[Row], documents: Mapping[Row, Document], entries: Sequence[Known] = ()) -> str:
    """The page of a framework: the claims of each row with their reasons, and its defects."""
    of_it = [each for each in _findings() if each.path.parent.name == framework]
    parts = [f"# Conformance of {framework}\n", f"Documentation: <{FRAMEWORKS[framework][1]}>\n"]
    if of_it:
        told = "\n".join(f"- [{each.title}]({link(each)})" for each in of_it)
        parts.append(f"Findings, each with a script:\n\n{told}\n")
    for row in rows:
        parts += _section(row, documents.get(row), entries)
    return "\n".join(parts)


def _section(row: Row, document: Document | None, entries: Sequence[Known]) -> Iterator[str]:
    adapter = row.adapter
    says = " ".join((adapter.__doc__ or "").split("\n\n")[0].split())  # a table may follow
    yield f"## {row.name}\n\n{says}\n"
    yield f"    lockstep check {row.target} --world {row.world}\n"
    reasons = dict(getattr(adapter, "why", {}))
    claims = dict(getattr(adapter, "claims", {}))
    if claims:
        lines = [f"| `{name}` | `{value!r}` | {reasons.get(name, '')} |" for name, value in sorted(claims.items())]
        yield "\n".join(["| claim | value | why |", "| --- | --- | --- |", *lines]) + "\n"
    if document is None:
        yield "Not run yet.\n"
        return
    (target,) = document.targets or (Target(row.target),)
    for each in target.defects:
        told = [entry.reason for entry in entries if entry.is_of(target.name) and entry.cause == each.cause]
        yield _defect(each, next(iter(told), each.known))
    yield _laws(target)


def _laws(target: Target) -> str:
    held: list[LawEnd] = [law for law in target.laws if law.verdict != NOT_CLAIMED]
    lines = [f"| {law.law} | {law.verdict} | {law.runs} |" for law in held]
    return "\n".join(["| law | verdict | programs |", "| --- | --- | ---: |", *lines]) + "\n"


def _defect(found: Defect, reason: str) -> str:
    """A defect with its law, its needs, and the report of its smallest program.

    ``reason``: of its entry among the known failures: the path of a finding, or words.
    """
    finding = next((each for each in _findings() if reason.endswith(f"{each.path.parent.name}/{each.path.name}")), None)
    told = f" Known: [{finding.title}]({link(finding)})." if finding else f" Known: {reason}." if reason else ""
    report = "\n".join(f"    {line}".rstrip() for line in found.report.splitlines())
    return (
        f"**{found.id}: {found.verdict}**, {found.law}. It needs: {found.cause or 'nothing more'}.{told}\n\n{report}\n"
    )
