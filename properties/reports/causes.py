"""Failures with one cause are told in full once. If a defect breaks many laws, their failures have one core. The report
tells the plainest of them, and the others refer to it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.properties.reports.matrix import filed_by
from lockstep.properties.reports.paragraphs import wrapped

Cause = tuple[str, str, str]


@dataclass(frozen=True)
class FiledFailure:
    """A failure as it was filed: by which test of pytest's, with what law, and what `properties.running.hold` says."""

    test: Any
    law: Mapping[str, Any]
    failure: Mapping[str, Any]

    @property
    def cause(self) -> Cause:
        """The cause that it has in common with others."""
        return self.law["implementation"], self.failure["verdict"], self.failure["cause"]

    @property
    def name(self) -> str:
        """The law, for people."""
        return f"{self.law['number']} {self.law['law']}"

    def detours(self) -> tuple[bool, bool, int, int, str, str]:
        """The distance from the plainest: on the simulated world, with nothing but its cause, in the fewest words, of
        the first law.
        """
        law, told = self.law, self.failure
        plain = (law["world"] != "sim", not told["plain"], told["size"])
        return *plain, int(law["number"][1:]), law["law"], law["world"]


def tell_once(tests: list[Any], in_full: bool = False, all_of_them: str = "-v tells them all") -> list[str]:
    """Leaves in the reports of failed tests what no other tells, and puts first those that still tell something, unless
    all is to be told ``in_full``. ``all_of_them``: how to see all. Returns the causes, a line each; nothing where each
    failure has its own.
    """
    by_test = {id(test): list(_failures(test)) for test in tests}
    failures = sorted((told for several in by_test.values() for told in several), key=FiledFailure.detours)
    first: dict[Cause, FiledFailure] = {}
    for told in failures:
        first.setdefault(told.cause, told)
    if len(first) == len(failures):
        return []
    if not in_full:
        for mine in by_test.values():
            _shorten(mine, first)
        tests.sort(key=lambda test: by_test[id(test)] != [] and not _tells(by_test[id(test)], first))
    counts = Counter(told.cause for told in failures)
    several = len({told.law["implementation"] for told in failures}) > 1
    hint = "" if in_full else f" ({all_of_them})"
    lines = [f"{len(failures)} failures come down to {len(first)} program{'s'[: len(first) - 1]}{hint}:"]
    for cause, count in counts.most_common():
        told = first[cause]
        whose = f" of {told.law['implementation']}" if several else ""
        lines.append(f"  {count:4} x {told.failure['verdict']}, as in {told.name}{whose}")
    return lines


def _failures(test: Any) -> Iterable[FiledFailure]:
    law = filed_by(test) or {}
    return (FiledFailure(test, law, failure) for failure in law.get("failures", ()))


def _tells(mine: list[FiledFailure], first: Mapping[Cause, FiledFailure]) -> bool:
    return any(first[told.cause].test is told.test for told in mine)


def _shorten(mine: list[FiledFailure], first: Mapping[Cause, FiledFailure]) -> None:
    """Writes a test's report anew where other tests tell some of it."""
    own, elsewhere, scripts = [], dict[str, list[str]](), list[str]()
    for told in mine:
        plainest = first[told.cause]
        if plainest.test is told.test:
            own.append(told.failure["report"])
        else:
            where = f"{plainest.name}, on {plainest.law['world']}"
            elsewhere.setdefault(where, []).append(told.failure["verdict"])
            scripts += filter(None, [told.failure["script"]])
    if not elsewhere:
        return
    head = mine[0].failure["report"].partition(f": {mine[0].failure['verdict']}\n")[0]
    again = "; ".join(
        f"{' and '.join(dict.fromkeys(verdicts))}, as told of {where}" for where, verdicts in elsewhere.items()
    )
    see = f" See it: {', '.join(dict.fromkeys(scripts))}" if scripts else ""
    mine[0].test.longrepr = "\n\n".join([*own, "\n".join(wrapped(f"{head}: {again}.{see}", ""))])
