"""Compare two runs: new, mended and changed defects, and laws that were judged on more or fewer examples."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from lockstep.properties.results.document import Defect, Document, LawEnd, Target, in_order
from lockstep.properties.verdict import HOLDS, NOT_CLAIMED

Thing = TypeVar("Thing", Defect, LawEnd)


def differences(before: Document, after: Document) -> tuple[list[str], bool]:
    """The lines to print, and whether something got worse.

    It got worse if a defect is new, or if a law that held does not hold any more. A law that is no longer claimed or
    was not run does not count.
    """
    lines, worse = of_targets(before, after)
    return [*lines, *of_versions(before, after)], worse


def of_targets(before: Document, after: Document, counts: bool = True) -> tuple[list[str], bool]:
    """As `differences`, without the lines on versions.

    ``counts``: also report laws of which only the number of examples differs.
    """
    lines, worse = [], False
    olds, news = ({target.name: target for target in each.targets} for each in (before, after))
    for name in sorted({*olds, *news}):
        if name not in olds or name not in news:
            lines.append(f"{name}: only in the {'second' if name in news else 'first'} run")
        told, is_worse = _of_target(olds.get(name, Target(name)), news.get(name, Target(name)), counts)
        lines += [name, *(f"  {line}" for line in told)] if told else []
        worse = worse or is_worse
    return lines, worse


def of_versions(before: Document, after: Document) -> list[str]:
    """A line for each package whose version differs."""
    versions = {**before.versions, "lockstep": before.lockstep}, {**after.versions, "lockstep": after.lockstep}
    return [
        f"{package}: {versions[0].get(package, 'not there')} before, {versions[1].get(package, 'not there')} after"
        for package in sorted({*versions[0], *versions[1]})
        if versions[0].get(package) != versions[1].get(package)
    ]


def _of_target(old: Target, new: Target, counts: bool) -> tuple[list[str], bool]:
    lines, worse = [], False
    for _, before, after in _pairs(_by_what(old.defects), _by_what(new.defects)):
        if before is None and after is not None:
            worse = worse or not after.known
            known = f"; known: {after.known}" if after.known else ""
            lines.append(f"new: {after.verdict} in {after.law}{_more(after)}{known}")
        elif after is None and before is not None:
            where = "mended" if _was_held(before, new) else "not met"
            lines.append(f"{where}: {before.verdict} in {before.law}{_more(before)}")
    for _, was, now in _pairs(_by_law(old.laws), _by_law(new.laws)):
        if was is None or now is None:
            only = was or now
            if only is not None and only.world:
                when = "before" if now is None else "now"
                lines.append(f"only {when}: {only.law}{_on(only)}: {only.verdict}")
        elif was.verdict != now.verdict:
            worse = worse or (was.verdict == HOLDS and now.verdict != NOT_CLAIMED and not now.known)
            lines.append(f"changed: {was.law}{_on(was)}: {was.verdict} before, {now.verdict} after")
        elif counts and was.runs != now.runs:
            more = "more" if now.runs > was.runs else "fewer"
            lines.append(f"{more} examples: {was.law}{_on(was)}: {was.runs} before, {now.runs} after")
    return lines, worse


def _by_what(defects: Iterable[Defect]) -> Mapping[Hashable, Defect]:
    """The defects by what identifies them in any run.

    Several defects with the same identity are numbered in their order.
    """
    known, found = Counter[tuple[str, ...]](), dict[Hashable, Defect]()
    for each in defects:
        known[each.what] += 1
        found[each.what, known[each.what]] = each
    return found


def _by_law(laws: Iterable[LawEnd]) -> Mapping[Hashable, LawEnd]:
    return {(each.law, each.world): each for each in sorted(laws, key=lambda each: (in_order(each.law), each.world))}


def _pairs(
    old: Mapping[Hashable, Thing], new: Mapping[Hashable, Thing]
) -> Iterator[tuple[Hashable, Thing | None, Thing | None]]:
    """Pair the entries that have the same key."""
    return ((key, old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new)))


def _was_held(defect: Defect, target: Target) -> bool:
    """True if the new run checked every law that the defect broke."""
    return {*defect.laws} <= {law.law for law in target.laws if law.world}


def _more(defect: Defect) -> str:
    count = len(defect.laws) - 1
    return f" and {count} more {'law' if count == 1 else 'laws'}" if count else ""


def _on(law: LawEnd) -> str:
    return f" on {law.world}" if law.world else ""
