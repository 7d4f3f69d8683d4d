"""The known failures of a run, and the known ones that are mended."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.properties.results.known import Known, failures_of
from lockstep.properties.verdict import HOLDS


def settle(row: dict[str, Any], entries: Sequence[Known]) -> str:
    """Mark the known failures of a law: each gets the reason as ``known``.

    If all failures are known, the law gets ``known`` too, and the reasons are returned; else "".
    """
    failures = failures_of(row)
    for failure in failures:
        for each in entries:
            if each.covers(row, failure):
                failure["known"] = f"{each.reason} ({each.report})" if each.report else each.reason
                break
    if not failures or not all("known" in failure for failure in failures):
        return ""
    row["known"] = True
    return "; ".join(dict.fromkeys(failure["known"] for failure in failures))


def mended(rows: Sequence[Mapping[str, Any]], entries: Sequence[Known], complete: bool) -> list[Known]:
    """The entries that no longer fail, as far as this run can decide that.

    An entry with a law is decided if that law was checked. An entry with a cause alone is decided if the run is
    ``complete``, that is, if every law was checked. It is not decided if a law of it has a new failure, or could not be
    judged.
    """
    found = []
    for entry in entries:
        about = [row for row in rows if entry.is_about(row)]
        broken = [row for row in about if failures_of(row)]
        if any(entry.covers(row, each) for row in broken for each in failures_of(row)):
            continue
        settled = all(row.get("known") for row in broken)
        held = [row for row in about if row["verdict"] == HOLDS]
        if settled and (broken or held) and (entry.law or complete):
            found.append(entry)
    return found


def told(rows: Sequence[Mapping[str, Any]], mended: Sequence[Known]) -> list[str]:
    """The lines on known and mended failures for the end of a run."""
    count = sum("known" in failure for row in rows for failure in row.get("failures", ()))
    count += sum(bool(row.get("known")) and not row.get("failures") for row in rows)
    are = "1 failure is known, and does" if count == 1 else f"{count} failures are known, and do"
    return [f"{are} not fail the run."] * (count > 0) + [
        f"No longer fails; remove it from the file of known failures: {each}" for each in mended
    ]
