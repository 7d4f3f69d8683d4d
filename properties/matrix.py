"""The conformance matrix at the end of a run: which law ended how, for which implementation, on which world."""

from collections.abc import Iterable
from typing import Any

PROPERTY = "lockstep"  # the key under which a law's test files its verdict with pytest
IMPOSSIBLE = "cannot be chosen"  # when collectives read and write, or in which order they reduce, on a real backend


def matrix(reports: Iterable[Any], left_out: Iterable[tuple[str, str, str, str]] = ()) -> list[str]:
    """Lines to print, a block for each implementation: a law a line, then its verdict on each world.

    ``left_out``: implementation, number and name of the laws that did not run, and on which world they cannot; empty:
    not claimed.
    """
    verdicts: dict[str, dict[str, dict[str, str]]] = {}
    for report in reports:
        for key, filed in getattr(report, "user_properties", ()):
            if key == PROPERTY and report.when == "call":
                rows = verdicts.setdefault(filed["implementation"], {})
                rows.setdefault(f"{filed['number']:4}{filed['law']}", {})[filed["world"]] = filed["verdict"]
    for name, number, law, world in left_out:
        if name in verdicts:
            row = verdicts[name].setdefault(f"{number:4}{law}", {})
            row |= {world: IMPOSSIBLE} if world else {}
    lines = []
    for implementation, rows in sorted(verdicts.items()):
        lines.append(implementation)
        for law, by_world in sorted(rows.items()):
            ended = "; ".join(f"{verdict} on {world}" for world, verdict in sorted(by_world.items(), reverse=True))
            if len(set(by_world.values())) == 1:
                ended = f"{next(iter(by_world.values()))} on {' and '.join(sorted(by_world, reverse=True))}"
            lines.append(f"  {law:80} {ended or 'not claimed'}")
    return lines
