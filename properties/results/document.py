"""A run of the laws as data: `lockstep check --json FILE` writes it and `lockstep diff` reads it.

A file holds one `Document` as JSON. Its keys are the field names of the classes below. A new field does not change the
number of the schema. The number grows if a field is removed or changes its meaning. Two runs with one seed on the
simulated world differ in ``started`` and ``seconds`` alone.
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
    """A group of failures with one cause, described by the plainest of them.

    - ``id``: "D1", "D2" and so on, unique in a document.
    - ``law``, ``world``, ``scenario``, ``script``, ``report``: those of the plainest failure. ``scenario`` and
      ``script`` are empty if there are none.
    - ``verdict``: for example "silently wrong".
    - ``cause``: the property that all its failing programs share, in words.
    - ``laws``: all laws that it breaks.
    - ``needs``: the features without which no program shows the defect, if they are known. `lockstep diff` matches
      the defects of two documents by them.
    - ``claim``: the claim to decline in order to set aside exactly these programs; empty if there is none.
    - ``known``: the reason given in the file of known failures; empty if the defect is new.
    - ``diagnosis``: the statements of the report as data; empty for a kernel, and in a file of an earlier version.
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
        """The identity of the defect, which is the same in any run."""
        return self.needs or (self.cause, self.verdict)


@dataclass(frozen=True)
class LawEnd:
    """The result of one law on one world.

    - ``law``: number and sentence, for example "P1 gradients equal the mean over ranks".
    - ``world``: the world on which it was checked; empty if it was not checked.
    - ``verdict``: in the words of `lockstep.properties.verdict`.
    - ``runs``: the number of examples; ``refused``: how many of them the implementation refused.
    - ``defects``: the ids of the defects that break it.
    - ``left_out``: the number of programs that were set aside, by defect.
    - ``known``: true if all its failures are known.
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
    """A class or function under test, by the ``name`` that the run was given.

    - ``defects``: the plainest first.
    - ``laws``: the result of each law on each world.
    """

    name: str
    defects: tuple[Defect, ...] = ()
    laws: tuple[LawEnd, ...] = ()


@dataclass(frozen=True)
class Document:
    """A run.

    - ``lockstep``: its version; ``versions``: those of other packages.
    - ``profile``: the profile, which sets the number of examples of a law.
    - ``seed``: the seed that repeats the run; empty if there is none or none is needed.
    - ``worlds``: the worlds on which laws were checked.
    - ``stopped``: true if the run ended before every law had.
    - ``targets``: sorted by name.
    - ``mended``: entries of the file of known failures that no longer fail, in words.
    - ``started``: the time in UTC, as in ISO 8601; ``seconds``: the duration of the run.
    - ``schema``: the number of the schema, see above.
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
    """The targets of the data that the laws have filed, see `properties.reports.matrix.verdicts`."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for each in filed:
        by_name.setdefault(each["implementation"], []).append(each)
    return tuple(_target(name, by_name[name]) for name in sorted(by_name))


def _target(name: str, filed: Sequence[Mapping[str, Any]]) -> Target:
    """A target with its defects as they were filed.

    Failures that belong to no filed defect become one defect for each cause.
    """
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
    return Defect(
        law=law_of(filed),
        report=report,
        laws=tuple(laws),
        needs=tuple(filed["needs"]),
        known=known,
        diagnosis=_facts(filed["faces"][0]),
        **words,
    )


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
    """The number and sentence of the law that filed a row."""
    return f"{row['number']} {row['law']}"


def in_order(law: str) -> tuple[int, str]:
    """The key that sorts laws by number."""
    number, _, sentence = law.partition(" ")
    return int(number[1:]), sentence


def write(document: Document, path: Path) -> None:
    """Write a document to a file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": document.schema, **dataclasses.asdict(document)}, indent=1) + "\n", "utf-8")


def read(path: Path) -> Document:
    """The document in a file. Raises Unusable with a message of one line if the file holds no document."""
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
    """Convert JSON data to a value of type ``kind``, and leave out fields that this version does not know.

    Raises TypeError with the place in the data if the data have another type.
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
