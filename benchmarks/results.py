"""Measurements as a JSON file, from which a stopped run goes on, and as a table."""

import datetime
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

NAME = "results.json"
EXPLAINED = (
    "The fastest of ours, replayed from a CUDA graph where it can be captured; its share of the copy's bandwidth, in",
    "brackets what the model expects of an H200; the host's part of a call, and a call queued behind others, with the",
    "host; how many times as long the others take.",
)
PACKAGES = ("torch", "triton", "numpy", "apex", "transformer_engine")


class Results:
    """The units that are done, by part and name; kept in a folder after each.

    What another GPU, package or kernel has given is put aside: figures that are compared are of one machine and code.
    """

    def __init__(self, folder: Path, about: dict[str, Any], again: bool = False) -> None:
        self.path = folder / NAME
        self.about = about
        self.done: dict[str, dict[str, Any]] = {}
        if self.path.exists() and not again:
            kept = json.loads(self.path.read_text())
            if {**kept["about"], "date": ""} == {**about, "date": ""}:
                self.about, self.done = kept["about"], kept["done"]
            else:
                self.path.rename(folder / f"results-of-{kept['about']['date']}.json")

    def add(self, part: str, unit: str, found: Any, took: float) -> None:
        """Files what a unit has found, and the seconds it took."""
        self.done.setdefault(part, {})[unit] = {"found": found, "took": round(took, 2)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"about": self.about, "done": self.done}, indent=1))
        new.replace(self.path)

    def lacks(self, part: str, unit: str) -> bool:
        """True if a unit is still to be done."""
        return unit not in self.done.get(part, {})


def about(dry: bool, code: str) -> dict[str, Any]:
    """Date, GPU and versions; ``code``: what was measured, in a few letters."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    today = datetime.date.today().isoformat()
    return {"date": today, "gpu": gpu, "python": platform.python_version(), **versions, "dry": dry, "code": code}


def heading(found: dict[str, Any]) -> str:
    """Date, GPU and versions in a line."""
    versions = ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found)
    dry = "; a dry run: nothing here is a figure of a GPU's" if found["dry"] else ""
    return f"{found['date']}: GPU {found['gpu']}, Python {found['python']}, {versions}{dry}"


def table(results: Results) -> list[str]:
    """Time of ours, its share of the copy's bandwidth, what the model expects, the host's part; then the others."""
    lines = [heading(results.about), "", *EXPLAINED, ""]
    for part in ("kernels", "compiled"):
        for unit, kept in results.done.get(part, {}).items():
            lines += [line(unit, contest) for contest in kept["found"]]
    for part, units in results.done.items():
        if part not in ("kernels", "compiled"):
            lines += ["", f"{part}:", *(told for unit, kept in units.items() for told in others(unit, kept["found"]))]
    return lines


def others(unit: str, found: Any) -> list[str]:
    """The lines of a result that is no contest: one, or one for each of its parts."""
    if not isinstance(found, dict):
        return [f"  {unit}: {found}"]
    return [f"  {unit}", *(f"    {name}: {value}" for name, value in found.items())]


def line(unit: str, contest: dict[str, Any]) -> str:
    """One contest."""
    took = contest["took"]
    ours = min(contest["ours"], key=lambda name: time_of(took[name]))
    best = time_of(took[ours])
    text = f"{unit.partition(':')[0]:32}{contest['name']:28}{1e6 * best:10.1f} us"
    text += f"{100 * share(contest, best):7.1f} % ({100 * contest['expected']:3.0f} %)"
    text += f"  host {1e6 * took[ours]['host']:6.1f} us"
    text += f"  call {1e6 * took[ours]['eager']:8.1f} us"
    rest = [f"{name} {time_of(each) / best:.2f}" for name, each in took.items() if name not in (ours, "copy")]
    return text + (f"   {', '.join(rest)}" if rest else "")


def time_of(took: dict[str, Any]) -> float:
    """Replayed where it could be captured, else called."""
    found: float = took["eager"] if took["graph"] is None else took["graph"]
    return found


def share(contest: dict[str, Any], seconds: float) -> float:
    """Of the bandwidth of the copy beside it."""
    limit = contest["copied"] / time_of(contest["took"]["copy"])
    return float(contest["moved"] / seconds / limit)
