"""The end of a run on one screen: the defects, the verdicts by family, and the number of laws not claimed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.properties.law import FAMILIES
from lockstep.properties.reports.matrix import counted, matrix, refusals, together
from lockstep.properties.reports.paragraphs import wrapped
from lockstep.properties.verdict import (
    APART,
    BROKEN,
    HOLDS,
    IMPOSSIBLE,
    NOT_CLAIMED,
    REFUSES,
    SHOWS_NOTHING,
    SIM_ONLY,
    TRIED,
    listed,
)

Filed = Mapping[str, Any]
_OF_A_LAW = ("implementation", "number", "law")
FEW = 12  # up to so many laws are listed one by one


def overview(
    filed: Sequence[Filed], defects: Sequence[Filed], complete: bool = True, stopped: bool = False
) -> list[str]:
    """The lines, a part for each implementation.

    ``filed`` and ``defects``: as `properties.verdict` describes them. ``complete``: the run was asked for all laws.
    ``stopped``: some of them had not ended.
    """
    lines = []
    for name in dict.fromkeys(each["implementation"] for each in filed):
        mine = [each for each in filed if each["implementation"] == name]
        known = [each for each in defects if each["implementation"] == name]
        lines += [_heading(name, known, mine, complete, stopped), *_defects(known, mine)]
        if len({each["law"] for each in mine}) <= FEW:
            lines += matrix(mine, folded=True)[1:]
        else:
            lines += [*_families(mine), *_unclaimed(mine), *refusals(mine)]
    return lines


def named(filed: Sequence[Filed], defects: Sequence[Filed], complete: bool = True, stopped: bool = False) -> list[str]:
    """The defects alone, for the beginning of a list of all laws."""
    lines = []
    for name in dict.fromkeys(each["implementation"] for each in defects):
        mine, known = ([each for each in some if each["implementation"] == name] for some in (filed, defects))
        lines += [_heading(name, known, mine, complete, stopped), *_defects(known, mine)]
    return lines


def _heading(name: str, known: Sequence[Filed], filed: Sequence[Filed], complete: bool, stopped: bool) -> str:
    count = f"{len(known)} defect{'s' * (len(known) > 1)}"
    if stopped:
        so_far = f"has {count} so far" if known else "no defect was found so far"
        return f"{name}{'' if known else ':'} {so_far}. The run was stopped before every law was checked."
    which = "claimed" if complete else "checked"
    if not known:
        ended = {each["verdict"] for each in filed if _is_claimed(each)}
        return f"{name}: no defect was found; every {which} law holds." if ended <= {HOLDS} else f"{name}:"
    if any(each["stops"] for each in known):
        return f"{name} has {count}. The plainest program fails, so nothing else can be judged."
    whole = all(HOLDS in each["verdict"] or "broken" in each["verdict"] for each in filed if _is_claimed(each))
    them = "them" if len(known) > 1 else "it"
    return f"{name} has {count}.{f' Without {them}, every {which} law holds.' * whole}"


def as_told(filed: Sequence[Filed], defects: Sequence[Filed]) -> list[Filed]:
    """The rows as a reader gets them.

    The law that a defect breaks may have left out the programs with its cause, or have drawn none, because another law
    found the defect first. Such a law is shown as broken, as the paragraph of the defect says.
    """
    told = []
    for row in filed:
        mine = [each for each in defects if all(each[key] == row[key] for key in _OF_A_LAW)]
        left = row.get("left_out", ())
        broken = [each["id"] for each in mine if each["id"] in left or (not left and each["world"] == row["world"])]
        holds = row["verdict"] == HOLDS or row["verdict"].startswith(APART)
        told.append({**row, "verdict": f"{BROKEN}{listed(broken)}"} if broken and holds else row)
    return told


def _defects(known: Iterable[Filed], filed: Sequence[Filed]) -> list[str]:
    lines = []
    for each in known:
        law = f"{each['number']} {each['law']}"
        others = dict.fromkeys(
            f"{row['number']} {row['law']}" for row in filed if each["id"] in row.get("broken_by", ())
        )
        rows = {
            "Breaks": law,
            "Also": "; ".join(other for other in others if other != law),
            "Needs": "any program shows it" if each["stops"] else each["cause"],
            "Claim": f'"{each["claim"]}" covers just these programs' if each["claim"] else "",
            "Report": each["told"],
            "Script": each["script"],
        }
        lines.append(f"  {each['id']:3} {each['verdict']}")
        for title, words in rows.items():
            lines += wrapped(f"      {title + ':':8}{words}", " " * 14) if words else []
    return lines


def _families(filed: Sequence[Filed]) -> list[str]:
    """The verdicts of the claimed laws, a line for each family."""
    ends: dict[str, dict[str, set[str]]] = {}
    for each in filter(_is_claimed, filed):
        ends.setdefault(each["number"], {}).setdefault(each["law"], set()).add(each["verdict"])
    lines = ["  Laws by family:"]
    for number in sorted(ends, key=lambda number: int(number[1:])):
        verdicts = together(Counter(max(several, key=_badness) for several in ends[number].values()))
        told = ", ".join(counted(verdicts[verdict], verdict) for verdict in sorted(verdicts, key=_badness))
        lines += wrapped(f"  {number:3} {FAMILIES.get(number, ''):24} {told}", " " * 31)
    return lines


def _badness(verdict: str) -> tuple[int, str]:
    worse = (APART, SHOWS_NOTHING, IMPOSSIBLE, SIM_ONLY, "not ", REFUSES)
    place = next((at for at, begin in enumerate(worse, 1) if verdict.startswith(begin)), len(worse) + 1)
    return 0 if verdict == HOLDS else place, verdict


def _is_claimed(each: Filed) -> bool:
    return each["verdict"] != IMPOSSIBLE and not each["verdict"].startswith(NOT_CLAIMED)


def _unclaimed(filed: Iterable[Filed]) -> list[str]:
    """The number of laws that are not claimed, and the verdicts of those that were tried."""
    named = [each["verdict"] for each in filed if each["verdict"].startswith(NOT_CLAIMED)]
    if not named:
        return []
    count = f"{len(named)} law{'s' * (len(named) > 1)} (-v lists them)"
    tried = Counter(each.removeprefix(TRIED) for each in named if each.startswith(TRIED))
    told = ", ".join(counted(count, verdict) for verdict, count in tried.most_common())
    words = f" Lockstep tried {tried.total()} of them on a few programs: {told}. These fail no run." if told else ""
    return wrapped(f"  Not claimed: {count}.{words}", " " * 4)
