"""The conformance matrix at the end of a run: the verdict of each law, by implementation and world."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.properties.reports.paragraphs import WIDTH, fitted, width
from lockstep.properties.verdict import APART, BROKEN, IMPOSSIBLE, NOT_CLAIMED, listed

PROPERTY = "lockstep"  # the key under which a law's test files its verdict with pytest
SHOWN = "lockstep, of other laws"  # the key under which it files the number of its runs on which other laws were judged
KINDS = 3  # the kinds of refusals that are shown
OF_FAILURES = ("verdict", "cause", "scenario", "script", "known")  # the fields of each failure in a JUnit file


def verdicts(reports: Iterable[Any], left_out: Iterable[tuple[str, str, str, str]] = ()) -> list[Mapping[str, Any]]:
    """The data that tests have filed: implementation, number, law, world, verdict, and the examples if known.

    For broken laws also the ``failures``, see `properties.reports.failure.filed_failure`. ``left_out``: implementation,
    number, name and world of each law that did not run; the world cannot run it, or is empty if the law is not claimed.
    """
    reports = list(reports)
    filed = [each for report in reports if (each := filed_by(report)) is not None]
    others = shown(reports)
    filed = [_with_runs(each, others) for each in filed]
    told = {each["implementation"] for each in filed}
    for name, number, law, world in left_out:
        if name in told:
            verdict = IMPOSSIBLE if world else NOT_CLAIMED
            row = {"implementation": name, "number": number, "law": law, "world": world, "verdict": verdict}
            filed.append(row)
    return sorted(filed, key=lambda each: (each["implementation"], int(each["number"][1:]), each["law"]))


def shown(reports: Iterable[Any]) -> Counter[tuple[str, str, str]]:
    """The number of runs made for other laws on which each law was judged, by implementation, world and law."""
    found: Counter[tuple[str, str, str]] = Counter()
    for report in (report for report in reports if getattr(report, "when", "") == "call"):
        for told in (told for key, told in report.user_properties if key == SHOWN):
            found.update({(told["implementation"], told["world"], law): runs for law, runs in told["runs"].items()})
    return found


def _with_runs(filed: Mapping[str, Any], runs: Mapping[tuple[str, str, str], int]) -> Mapping[str, Any]:
    """A law's row, with the number of ``runs`` on which it was judged, if that exceeds its own examples."""
    more = runs.get((filed["implementation"], filed["world"], filed["law"]), 0)
    return {**filed, "runs": filed["examples"] + more} if more and filed.get("examples") else filed


def filed_by(report: Any) -> Mapping[str, Any] | None:
    """The data that a test has filed for its law. None if the test is no law's, or did not get so far."""
    if getattr(report, "when", "") != "call":
        return None
    return next((each for key, each in report.user_properties if key == PROPERTY), None)


def for_junit(properties: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """A test's properties for a JUnit file.

    Each value that its law has filed becomes a property like "lockstep.verdict", and each value of its first failure
    one like "lockstep.1.cause". Reports are left out, because a JUnit file has them anyway.
    """
    told: list[tuple[str, Any]] = []
    for key, filed in properties:
        if key == SHOWN:
            continue
        if key != PROPERTY:
            told.append((key, filed))
            continue
        told += [(f"{key}.{name}", value) for name, value in filed.items() if isinstance(value, str | int)]
        for number, failure in enumerate(filed.get("failures", ()), 1):
            told += [(f"{key}.{number}.{name}", failure[name]) for name in OF_FAILURES if failure.get(name)]
    return told


def matrix(filed: Sequence[Mapping[str, Any]], folded: bool = False) -> list[str]:
    """The lines to print, a block for each implementation, with a line for each law and its verdict on each world.

    The refusals follow. ``folded``: count laws that are not claimed, and of which no more is known, in one line.
    """
    rows: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for each in filed:
        row = f"{each['number']:4}{each['law']}"
        rows.setdefault(each["implementation"], {}).setdefault(row, []).append(each)
    lines = []
    for implementation, laws in rows.items():
        lines.append(implementation)
        ends = {law: _ended(by_world) for law, by_world in laws.items()}
        hidden = [law for law, ended in ends.items() if folded and ended == NOT_CLAIMED]
        lines += [line for law, ended in ends.items() if law not in hidden for line in _row(law, ended)]
        if hidden:
            count = f"{len(hidden)} more {'law is' if len(hidden) == 1 else 'laws are'} not claimed"
            lines.append(f"  {count} (-v lists them; `lockstep claims` explains claims).")
        lines += refusals(each for by_world in laws.values() for each in by_world)
    return lines


def _row(law: str, ended: str) -> list[str]:
    """A law and its verdicts, in two lines on a narrow terminal."""
    return [f"  {law:80} {ended}"] if width() == WIDTH else [f"  {law}", f"        {ended}"]


def refusals(filed: Iterable[Mapping[str, Any]]) -> list[str]:
    """The refusals of all laws that hold nevertheless, the most frequent first."""
    kinds: Counter[str] = Counter()
    for each in filed:
        kinds.update(each.get("refusals", {}))
    told = [fitted(f"  {times} refused: {' '.join(words.split())}") for words, times in kinds.most_common(KINDS)]
    rest = sum(kinds.values()) - sum(times for _, times in kinds.most_common(KINDS))
    return told + [f"  {rest} refused for other reasons"] * (rest > 0)


def _ended(by_world: list[Mapping[str, Any]]) -> str:
    """A law's verdicts. Worlds with the same verdict are grouped."""
    places: dict[str, list[str]] = {}
    for each in sorted(by_world, key=lambda each: str(each["world"]), reverse=True):
        told = str(each.get("runs", each.get("examples", "")))
        told += f", {each['refused']} refused" if "refused" in each else ""
        verdict = f"known: {each['verdict']}" if each.get("known") else each["verdict"]
        places.setdefault(verdict, []).append(f"{each['world']} ({told})" if told else each["world"])
    ended = [f"{verdict} on {' and '.join(worlds)}" for verdict, worlds in places.items() if worlds != [""]]
    return "; ".join(ended) or next(iter(places))


def totals(filed: Sequence[Mapping[str, Any]]) -> str:
    """The number of examples, the number of times that laws judged one, and the count of each verdict.

    The second number is the sum of those in brackets after the laws. Laws that are not claimed come last, also those
    that were tried.
    """
    examples = sum(each.get("examples", 0) for each in filed)
    times = sum(each.get("runs", each.get("examples", 0)) for each in filed)
    judged = f", judged {times} times" if times > examples else ""
    claimed = [each["verdict"] for each in filed if not each["verdict"].startswith(NOT_CLAIMED)]
    ends = [counted(count, verdict) for verdict, count in together(Counter(claimed)).most_common()]
    ends += [counted(left, NOT_CLAIMED)] if (left := len(filed) - len(claimed)) else []
    return f"{examples} examples{judged}; verdicts: {', '.join(ends)}"


def together(verdicts: Counter[str]) -> Counter[str]:
    """Counted verdicts that differ in their defects alone, as one: 2 that hold apart from D1 and 3 apart from D2 are 5
    apart from D1 and D2.
    """
    found, ids = Counter[str](), defaultdict[str, set[str]](set)
    for verdict, count in verdicts.items():
        begin = next((each for each in (APART, BROKEN, IMPOSSIBLE) if verdict.startswith(each)), verdict)
        found[begin] += count
        ids[begin] |= {verdict} if begin == IMPOSSIBLE else {*re.findall(r"D\d+", verdict.removeprefix(begin))}
    told = {each: f"{each}{listed(ids[each])}" for each in (APART, BROKEN) if ids[each]}
    if len(ids[IMPOSSIBLE]) == 1:
        told[IMPOSSIBLE] = ids[IMPOSSIBLE].pop()
    return Counter({told.get(begin, begin): count for begin, count in found.items()})


def counted(count: int, verdict: str) -> str:
    """A number of laws with a verdict: "1 holds", "12 hold apart from D1"."""
    verb, _, rest = verdict.partition(" ")
    verb = {"holds": "hold", "refuses": "refuse", "hangs": "hang", "crashes": "crash", "shows": "show"}.get(verb, verb)
    return f"{count} {verdict}" if count == 1 else f"{count} {verb} {rest}".rstrip()
