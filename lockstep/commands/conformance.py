"""`lockstep conformance`: frameworks against the laws, as pages; and two such reports side by side."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lockstep.properties.conformance import holding, page
from lockstep.properties.conformance.rows import ROWS
from lockstep.properties.implementations import Unusable
from lockstep.properties.results.diff import of_targets, of_versions
from lockstep.properties.results.document import read

EXAMPLES = 10


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Run the rows that are missing and write the pages, or compare two reports. Raises SystemExit."""
    if arguments[:1] == ["diff"]:
        _diff(parser, arguments[1:])
    parser.usage = "lockstep conformance [ROW ...] [options], or lockstep conformance diff BEFORE AFTER"
    parser.description = "Hold each framework that is installed against the laws, and write the pages of the report."
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a framework, or an adapter's name (default: all)")
    parser.add_argument("--examples", type=int, default=EXAMPLES, metavar="N", help="programs per law (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draw these programs (default: 0)")
    where = f"of the report (default: {holding.FOLDER.name})"
    parser.add_argument("--folder", type=Path, default=holding.FOLDER, help=where)
    parser.add_argument("--pages-only", action="store_true", help="run nothing: write the pages from what is there")
    asked = parser.parse_args(arguments)
    names = {name for row in ROWS for name in (row.framework, row.name)}
    if unknown := [name for name in asked.rows if name not in names]:
        parser.error(f"{unknown[0]}: there is no such row; there are {', '.join(sorted(names))}")
    rows = [row for row in ROWS if not asked.rows or {row.framework, row.name} & {*asked.rows}]
    if not asked.pages_only:
        holding.hold_all(rows, asked.folder, asked.examples, asked.seed, lambda line: print(line, flush=True))
    asked.folder.mkdir(parents=True, exist_ok=True)
    for path, text in page.as_written(asked.folder).items():
        path.write_text(text, "utf-8")
    raise SystemExit(0)


def _diff(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print what differs between the rows of two folders. Raises SystemExit with 1 where something got worse."""
    parser.usage = "lockstep conformance diff BEFORE AFTER"
    parser.add_argument("before", type=Path, help="the folder of a report")
    parser.add_argument("after", type=Path, help="that of a later one")
    asked = parser.parse_args(arguments)
    files = {path.name for folder in (asked.before, asked.after) for path in (folder / "results").glob("*.json")}
    if not files:
        parser.error(f"{asked.before}: there is no report, neither here nor in {asked.after}")
    worse, versions, only = False, dict[str, None](), list[tuple[str, str]]()
    for name in sorted(files):
        places = [folder / "results" / name for folder in (asked.before, asked.after)]
        row, there = name.removesuffix(".json"), [place.is_file() for place in places]
        if not all(there):
            only.append(("second" if there[1] else "first", row))
            continue
        try:
            before, after = map(read, places)
        except Unusable as error:
            parser.error(str(error))
        alike = before.profile == after.profile
        lines, is_worse = of_targets(before, after, counts=alike)
        print("\n".join(lines or [f"{row}: the same"]))
        more = [] if alike else [f"examples: {before.profile} before, {after.profile} after"]
        versions |= dict.fromkeys([*of_versions(before, after), *more])
        worse = worse or is_worse
    for which in ("first", "second"):
        if rows := [row for place, row in only if place == which]:
            print(f"only in the {which} report: {', '.join(rows)}")
    print("\n".join(versions), end="\n" if versions else "")
    raise SystemExit(int(worse))
