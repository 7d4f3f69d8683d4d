"""The file of known failures, in TOML:

    [[known]]
    implementation = "my_package.ddp:MyDDP"      # as `lockstep check` is given it
    law = "P6"                                   # or a law's sentence; may be left out if there is a cause
    cause = "Scenario(...)"                      # as `--json` and `--write-known` have it; may be left out
    verdict = "silently wrong"                   # may be left out
    versions = ["torch>=2.13,<2.15"]             # the failure is known for these alone; may be left out
    reason = "b is not reduced where rank 0 leaves it out"
    report = "https://github.com/..."            # may be left out

A failure is known if it matches every field of an entry. Entries for versions that are not installed are ignored.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from lockstep.properties.catalogue import every_text
from lockstep.properties.implementations import Unusable
from lockstep.properties.law import as_sentence
from lockstep.properties.verdict import REFUSES

WORDS = ("implementation", "law", "cause", "verdict", "reason", "report")
NEEDED = ("implementation", "reason")


@dataclass(frozen=True)
class Known:
    """An entry. ``versions``: requirements in pip's notation, for example "torch>=2.13,<2.15"."""

    implementation: str
    reason: str
    law: str = ""
    cause: str = ""
    verdict: str = ""
    versions: tuple[str, ...] = ()
    report: str = ""

    def applies(self) -> bool:
        """True if the installed versions satisfy ``versions``."""
        return all(map(_is_installed, self.versions))

    def is_of(self, implementation: str) -> bool:
        """True if the entry is about the target of this name.

        Paths are resolved first, so relative and absolute ones match.
        """
        return _resolved(self.implementation) == _resolved(implementation)

    def is_about(self, row: Mapping[str, Any]) -> bool:
        """True if the entry is about the target and the law of a filed row."""
        names = (row["number"], row["law"], f"{row['number']} {row['law']}")
        return self.is_of(row["implementation"]) and (not self.law or self.law in names)

    def covers(self, row: Mapping[str, Any], failure: Mapping[str, Any]) -> bool:
        """True if the entry matches a failure of a filed row."""
        causes = (failure["cause"], *_of_its_defect(row, failure))
        same = not self.cause or " ".join(self.cause.split()) in (" ".join(cause.split()) for cause in causes)
        return self.is_about(row) and same and self.verdict in ("", failure["verdict"])

    def __str__(self) -> str:
        what = [self.law, self.verdict, f"cause {self.cause}" if self.cause else ""]
        return f"{self.implementation}: {', '.join(filter(None, what))} ({self.reason})"


def read(path: str | Path | None) -> tuple[Known, ...]:
    """The entries of a file that apply to the installed versions; none if ``path`` is None.

    Raises Unusable with a message of one line.
    """
    return tuple(each for each in every(Path(path)) if each.applies()) if path is not None else ()


def every(path: Path) -> tuple[Known, ...]:
    """All entries of a file. Raises Unusable with a message of one line."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Unusable(f"--known {path}: {error.strerror}") from None
    except ValueError as error:
        raise Unusable(f"--known {path}: is not TOML: {error}") from None
    entries = data.get("known", [])
    if {*data} - {"known"} or not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise Unusable(f"--known {path}: it may contain [[known]] tables only")
    return tuple(_entry(each, f"--known {path}: entry {number}") for number, each in enumerate(entries, 1))


def _entry(data: Mapping[str, Any], where: str) -> Known:
    if unknown := [name for name in data if name not in (*WORDS, "versions")]:
        raise Unusable(f"{where}: there is no {unknown[0]!r}; there are {', '.join((*WORDS, 'versions'))}")
    if lacking := [name for name in NEEDED if not data.get(name)]:
        raise Unusable(f"{where}: has no {lacking[0]}")
    if not data.get("law") and not data.get("cause"):
        raise Unusable(f"{where}: names neither a law nor a cause; write one of them")
    versions = data.get("versions", [])
    words = all(isinstance(data.get(name, ""), str) for name in WORDS)
    if not words or not isinstance(versions, list) or not all(isinstance(each, str) for each in versions):
        raise Unusable(f"{where}: each value must be a string, and `versions` a list of strings")
    law = data.get("law", "")
    if law and law not in _laws():
        raise Unusable(f"{where}: there is no law {law!r}; `lockstep laws` lists them")
    for each in versions:
        try:
            Requirement(each)
        except InvalidRequirement:
            raise Unusable(f"{where}: {each!r} is no version; write 'torch>=2.13,<2.15'") from None
    return Known(**{name: data[name] for name in WORDS if name in data}, versions=tuple(versions))


def written(entries: Iterable[Known]) -> str:
    """The text of a file with these entries."""
    lines = ["# Failures that are known: `lockstep check --known FILE` fails by what is new, and by what is mended."]
    for each in entries:
        lines += ["", "[[known]]"]
        lines += [f"{name} = {_quoted(value)}" for name in WORDS if (value := getattr(each, name)) and name != "reason"]
        lines += [f"versions = [{', '.join(map(_quoted, each.versions))}]"] if each.versions else []
        lines.append(f"reason = {_quoted(each.reason)}")
    return "\n".join(lines) + "\n"


def new_ones(rows: Sequence[Mapping[str, Any]]) -> tuple[Known, ...]:
    """An entry for each cause of failures that are not known yet.

    If a failure has no cause, its entry names the law.
    """
    entries: dict[tuple[str, ...], Known] = {}
    versions = (_from_here_on("torch"),)
    for row in rows:
        name, law = row["implementation"], f"{row['number']} {row['law']}"
        for each in failures_of(row):
            if "known" not in each and not row.get("known"):
                whole = "" if each["cause"] else law
                (cause, *_) = (*_of_its_defect(row, each), each["cause"])
                told = Known(name, f"met in {law}", whole, cause, each["verdict"], versions)
                entries.setdefault((name, whole, cause, each["verdict"]), told)
    return tuple(entries.values())


def _of_its_defect(row: Mapping[str, Any], failure: Mapping[str, Any]) -> list[str]:
    """The cause in words, if the failure belongs to a defect that was found under this law."""
    return [each["cause"] for each in row.get("defects", ()) if each["id"] == failure.get("defect")]


def failures_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The failures that a law has filed.

    A law that is refused has no failing program, so it gives one failure without a cause.
    """
    if row["verdict"] == REFUSES:
        return [{"verdict": REFUSES, "cause": ""}]
    return list(row.get("failures", ()))


def _from_here_on(package: str) -> str:
    """A requirement for the installed minor version of a package."""
    major, minor = version(package).split(".")[:2]
    return f"{package}>={major}.{minor},<{major}.{int(minor) + 1}"


def _laws() -> set[str]:
    """The names by which an entry may call a law: its number, its sentence, or both."""
    named = [(number, as_sentence(name)) for number, name, _ in every_text()]
    return {word for number, sentence in named for word in (number, sentence, f"{number} {sentence}")}


def _is_installed(requirement: str) -> bool:
    wanted = Requirement(requirement)
    try:
        return wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _resolved(name: str) -> str:
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if place.endswith(".py") else name


def _quoted(text: str) -> str:
    """The text as a basic string of TOML, which has the same escapes as JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
