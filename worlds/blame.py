"""The ranks to blame if an example on real processes fails: most ranks that fail were only let down by others.

Each rank notes the collectives that it launched last. The supervisor can read these notes whatever happens to the rank.
After an asynchronous collective, as all of NCCL's are, a rank may have launched others before it got stuck.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from lockstep.worlds.contract import MESSAGES, Collective, RankError, RankReport

IMPORTING = -1  # the count of a rank that has yet to begin


@dataclass(frozen=True)
class Progress:
    """A rank's progress: the number of collectives launched; the group, place in it, and call of the last ones."""

    count: int = 0
    calls: tuple[tuple[str, int, str], ...] = ()

    def __str__(self) -> str:
        if self.count == IMPORTING:
            return "it was still importing"
        last = f", the last {self.calls[-1][2]}" if self.calls else ""
        return f"{self.count} collective{'s' * (self.count != 1)} launched{last}"


def blame(
    reports: Mapping[int, RankReport], silent: Mapping[int, Progress], stacks: Mapping[int, str], waited: float
) -> dict[int, RankReport]:
    """A report for every rank of an example that failed.

    ``silent``: the progress of the ranks that reported no collectives. ``stacks``: of those that gave no answer within
    ``waited`` seconds. A rank that waits in a collective to which others have not come was let down by them.
    """
    reports = dict(reports)
    failed = any(report.error for report in reports.values())
    behind = min((silent[rank].count for rank in stacks), default=0)
    for rank, text in stacks.items():
        far = silent[rank]
        if failed:
            kind, message = "abandoned", f"still waited when the example was ended ({far})"
        elif far.count > behind:
            late = ", ".join(str(other) for other in stacks if silent[other].count == behind)
            kind, message = "abandoned", f"waited for rank {late} ({far})"
        else:
            kind, message = "timeout", f"gave no answer within {waited:.0f} s ({far})"
        reports[rank] = RankReport(None, RankError(kind, message, text))
    # Ranks that have gone on since they disagreed, as gloo lets them at times, may end for another reason.
    if said := disagreement(reports, silent, recent=not failed):
        for rank, report in reports.items():
            if (error := report.error) is not None:
                details = f"{error.message}\n{error.details}".strip()
                reports[rank] = replace(report, error=replace(error, kind="mismatch", message=said, details=details))
    return reports


def disagreement(reports: Mapping[int, RankReport], silent: Mapping[int, Progress], recent: bool = False) -> str:
    """The first collective on which two ranks are known to disagree, in words; empty if there is none.

    ``recent``: of a silent rank all that is known counts, and else only what it has launched last.
    """
    known = {rank: _by_place(report.collectives) for rank, report in reports.items()}
    for rank, far in silent.items():
        if far.calls:
            known[rank] = _unmistakable(far.calls if recent else far.calls[-1:])
    for one, other in combinations(sorted(known), 2):
        for where in sorted(known[one].keys() & known[other].keys(), key=lambda where: where[1]):
            first, second = known[one][where], known[other][where]
            if apart(first, second):
                group, place = where
                says = f"rank {one} calls {first}, rank {other} calls {second}"
                return f"ranks disagree on collective {place + 1} of the {group} group: {says}"
    return ""


def apart(first: str, second: str) -> bool:
    """True if two ranks cannot mean the same collective. Messages and a rank's own counts are not compared."""
    operations = [call.partition("(")[0] for call in (first, second)]
    if not {*operations}.isdisjoint(MESSAGES):
        return False
    own_counts = "all_to_all" in operations or any(f" {word} " in first + second for word in ("gives", "takes"))
    return operations[0] != operations[1] if own_counts else first != second


def _unmistakable(calls: tuple[tuple[str, int, str], ...]) -> dict[tuple[str, int], str]:
    """As of `_by_place`, without what two groups of one label have each had there, one made after the other."""
    found: dict[tuple[str, int], set[str]] = {}
    for group, place, call in calls:
        found.setdefault((group, place), set()).add(call)
    return {where: said.pop() for where, said in found.items() if len(said) == 1}


def _by_place(collectives: tuple[Collective, ...]) -> dict[tuple[str, int], str]:
    """Each collective in words, by its group and its place in the group's sequence."""
    counts: dict[str, int] = {}
    found = {}
    for call in collectives:
        if call.operation in MESSAGES:
            continue
        place = counts.get(call.group, 0)
        counts[call.group] = place + 1
        found[call.group, place] = str(call)
    return found
