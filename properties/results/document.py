"""A run of the laws as data: what `lockstep check --json FILE` writes and `lockstep diff` reads.

A file holds one `Document` as JSON, with the names that the classes below have. The number of the schema stays where a
field is added, and grows where one is taken away or changes its meaning. Two runs of one seed on the simulated world
differ in ``started`` and ``seconds`` alone.
"""

import dataclasses
import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.properties.implementations import Unusable
from lockstep.properties.reports.facts import Facts

SCHEMA = 1


@dataclass(frozen=True)
class Defect:
    """Failures of one cause, by the plainest of them. ``id``: "D1" and so on, in one document.

    ``law``, ``world``, ``scenario``, ``script``, ``report``: of that failure; no scenario or script: "". ``verdict``:
    such as "silently wrong". ``cause``: what all of them have in common, and ``needs``: the features that they cannot
    do without, where that is known; by these documents are compared. ``claim``: to decline it sets aside just that; "":
    none does. ``laws``: all that it breaks. ``known``: the reason in the file of known failures; "": it is new.
    ``diagnosis``: the statements of the report as data; nothing of a kernel, or in a file of an earlier version.
    """

    id: str
    law: str
    world: str
    verdict: str
    cause: str
    scenario: str
    script: str
    report: str
    laws: tuple[str, ...]
    needs: tuple[str, ...] = ()
    claim: str = ""
    known: str = ""
    diagnosis: Facts = field(default_factory=Facts)

    @property
    def what(self) -> tuple[str, ...]:
        """The same for one defect in any run."""
        return self.needs or (self.cause, self.verdict)


@dataclass(frozen=True)
class LawEnd:
    """The end of a law. ``law``: number and sentence, as "P1 gradients equal the mean over ranks". ``world``: where
    it was held; "": nowhere. ``verdict``: in the words of `lockstep.properties.verdict`. ``runs``: examples, of which
    so many were ``refused``. ``defects``: the ids of those that break it. ``left_out``: how many programs were set
    aside, by defect. ``known``: whether all that fails is known.
    """

    law: str
    world: str
    verdict: str
    runs: int = 0
    refused: int = 0
    defects: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    known: bool = False


@dataclass(frozen=True)
class Target:
    """A tested target. ``name``: as the run was given it. ``defects``: the plainest first. ``laws``: how each ended."""

    name: str
    defects: tuple[Defect, ...] = ()
    laws: tuple[LawEnd, ...] = ()


@dataclass(frozen=True)
class Document:
    """A run. ``schema``: the number above. ``lockstep``: its version; ``versions``: of packages. ``profile``: says how
    many examples a law gets. ``seed``: that repeats the run; "": none does, or none is needed. ``worlds``: on which
    laws were held. ``stopped``: before every law had come to its end. ``targets``: by their names. ``mended``: what the
    file of known failures lists and no longer fails, in words. ``started``: in UTC, as in ISO 8601; ``seconds``: that
    the run took.
    """

    lockstep: str
    versions: Mapping[str, str]
    profile: str
    seed: str
    worlds: tuple[str, ...]
    stopped: bool
    targets: tuple[Target, ...]
    mended: tuple[str, ...] = ()
    started: str = ""
    seconds: float = 0.0
    schema: int = field(default=SCHEMA, kw_only=True)


def targets(filed: Iterable[Mapping[str, Any]]) -> tuple[Target, ...]:
    """Of what the laws have filed, see `properties.reports.matrix.verdicts`."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for each in filed:
        by_name.setdefault(each["implementation"], []).append(each)
    return tuple(_target(name, by_name[name]) for name in sorted(by_name))


def _target(name: str, filed: Sequence[Mapping[str, Any]]) -> Target:
    """Defects as they were filed; what was filed as failures alone has one for each cause."""
    ordered = sorted(filed, key=lambda each: (int(each["number"][1:]), each["law"], each["world"]))
    found = [(row, defect) for row in ordered for defect in row.get("defects", ())]
    found.sort(key=lambda pair: int(pair[1]["id"][1:]))
    told = [(row, each) for row in ordered for each in row.get("failures", ()) if "defect" not in each]
    told.sort(key=lambda pair: (pair[0]["world"] != "sim", not pair[1]["plain"], pair[1]["size"]))
    ids = {cause: f"D{number}" for number, cause in enumerate(dict.fromkeys(map(_cause, told)), 1 + len(found))}
    breaks = {id(row): _breaks(row, ids) for row in ordered}
    laws = {
        each: sorted({law_of(row) for row in ordered if each in breaks[id(row)]}, key=in_order)
        for each in (*(defect["id"] for _, defect in found), *ids.values())
    }
    plainest = {ids[_cause(pair)]: pair for pair in reversed(told)}
    defects = [_filed_defect(row, defect, laws[defect["id"]]) for row, defect in found]
    defects += [_defect(each, plainest[each], laws[each]) for each in ids.values()]
    return Target(name, tuple(defects), tuple(_law(row, breaks[id(row)]) for row in ordered))


def _cause(pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> tuple[str, str]:
    return pair[1]["cause"], pair[1]["verdict"]


def _breaks(row: Mapping[str, Any], ids: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    """The ids of the defects that break a law."""
    alone = (ids[_cause((row, each))] for each in row.get("failures", ()) if "defect" not in each)
    return tuple(dict.fromkeys((*row.get("broken_by", ()), *alone)))


def _filed_defect(row: Mapping[str, Any], filed: Mapping[str, Any], laws: Sequence[str]) -> Defect:
    words = {key: filed[key] for key in ("id", "world", "verdict", "cause", "claim", "scenario", "script")}
    report = "\n\n".join(face["report"] for face in filed["faces"])
    known = next((face["known"] for face in filed["faces"] if "known" in face), "")
    told: dict[str, Any] = {"report": report, "laws": tuple(laws), "needs": tuple(filed["needs"]), "known": known}
    return Defect(law=law_of(filed), diagnosis=_facts(filed["faces"][0]), **told, **words)


def _defect(name: str, pair: tuple[Mapping[str, Any], Mapping[str, Any]], laws: Sequence[str]) -> Defect:
    row, plainest = pair
    words = {key: plainest[key] for key in ("verdict", "cause", "scenario", "script", "report")}
    known = plainest.get("known", "")
    return Defect(name, law_of(row), row["world"], laws=tuple(laws), known=known, diagnosis=_facts(plainest), **words)


def _facts(failure: Mapping[str, Any]) -> Facts:
    """The facts of a failure as it was filed."""
    return typing.cast(Facts, _made(Facts, json.loads(json.dumps(failure.get("diagnosis", {})))))


def _law(row: Mapping[str, Any], breaks: tuple[str, ...]) -> LawEnd:
    counts = row.get("examples", 0), row.get("refused", 0)
    left = dict(row.get("left_out", {}))
    return LawEnd(law_of(row), row["world"], row["verdict"], *counts, breaks, left, row.get("known", False))


def law_of(row: Mapping[str, Any]) -> str:
    """Number and sentence of what a law has filed."""
    return f"{row['number']} {row['law']}"


def in_order(law: str) -> tuple[int, str]:
    """Laws by their numbers."""
    number, _, sentence = law.partition(" ")
    return int(number[1:]), sentence


def write(document: Document, path: Path) -> None:
    """Writes a document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": document.schema, **dataclasses.asdict(document)}, indent=1) + "\n", "utf-8")


def read(path: Path) -> Document:
    """The document in a file. Raises Unusable, in one line, where there is none."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Unusable(f"{path}: is not JSON; `lockstep check --json {path}` writes it") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        has = data.get("schema") if isinstance(data, dict) else None
        raise Unusable(f"{path}: its schema is {has!r}, and this Lockstep reads schema {SCHEMA}")
    try:
        return typing.cast(Document, _made(Document, data))
    except (TypeError, ValueError) as error:
        raise Unusable(f"{path}: {error}") from None


def _made(kind: Any, data: Any, place: str = "") -> Any:
    """A value of that type out of JSON; fields that this version does not know are left out. TypeError, with the place,
    for another type.
    """
    inside = typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        types = typing.get_type_hints(kind)
        known = {name: _made(types[name], value, f"{place}.{name}") for name, value in data.items() if name in types}
        return typing.cast(type, kind)(**known)
    if typing.get_origin(kind) is tuple and isinstance(data, list):
        return tuple(_made(inside[0], each, f"{place}[{index}]") for index, each in enumerate(data))
    if typing.get_origin(kind) is Mapping and isinstance(data, dict):
        return {key: _made(inside[1], value, f"{place}.{key}") for key, value in data.items()}
    number = kind is float and type(data) in (int, float)
    if not number and (not isinstance(kind, type) or type(data) is not kind):
        raise TypeError(
            f"{place.removeprefix('.')} is {data!r}, and must be of the type {getattr(kind, '__name__', kind)}"
        )
    return data
