"""The conformance matrix at the end of a run: which law ended how, for which implementation, on which world."""

from collections.abc import Iterable
from typing import Any

PROPERTY = "lockstep"  # the key under which a law's test files its verdict with pytest


def matrix(reports: Iterable[Any], unclaimed: Iterable[tuple[str, str, str]] = ()) -> list[str]:
    """Lines to print, a block for each implementation: a law a line, then its verdict on each world.

    ``unclaimed``: implementation, number and name of the laws that did not run because they are not claimed.
    """
    verdicts: dict[str, dict[str, dict[str, str]]] = {}
    for report in reports:
        for key, filed in getattr(report, "user_properties", ()):
            if key == PROPERTY and report.when == "call":
                rows = verdicts.setdefault(filed["implementation"], {})
                rows.setdefault(f"{filed['number']:4}{filed['law']}", {})[filed["world"]] = filed["verdict"]
    for name, number, law in unclaimed:
        if name in verdicts:
            verdicts[name][f"{number:4}{law}"] = {}
    lines = []
    for implementation, rows in sorted(verdicts.items()):
        lines.append(implementation)
        for law, by_world in sorted(rows.items()):
            ended = "; ".join(f"{verdict} on {world}" for world, verdict in sorted(by_world.items(), reverse=True))
            if len(set(by_world.values())) == 1:
                ended = f"{next(iter(by_world.values()))} on {' and '.join(sorted(by_world, reverse=True))}"
            lines.append(f"  {law:80} {ended or 'not claimed'}")
    return lines
