"""The shipped faults that `lockstep exhaust` finds: `python -m lockstep.benchmarks.exhausted_faults FILE`.

A fault lies outside if each law that is named for it draws nothing of the core language: each of a dozen programs has
something else. Else all programs up to a small size run. If none fails, a law that is named for the fault is searched,
and the program that breaks it is shrunk. If this is of the core language and not above the default bound, it is run as
`lockstep exhaust` runs it: if it fails, so does that run, there or earlier.
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.claims import Claims
from lockstep.properties.exhausting import language
from lockstep.properties.exhausting.judged import check
from lockstep.properties.exhausting.portion import look
from lockstep.properties.exhausting.running import DEFAULT_SIZE
from lockstep.properties.implementations import described
from lockstep.properties.law import Law
from lockstep.properties.ranks.description import describe
from lockstep.properties.searching.search import search
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.independent import sample
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused
from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld

DRAWN = 12  # programs of a law, of which all have something that is not of the core language, or the law may be inside
TRIED = 6  # up to this size all programs run
CORE = {
    "accumulation",
    "unused",
    "step",
    "idle step",
    "several steps",
    "zero grad",
    "drop window",
    "clip",
    "clips twice",
}
CORE |= {"cap", "quadratic"}


def main() -> None:
    """Looks at the faults that are not in the file yet, appends a line for each, and prints what all come to."""
    parser = argparse.ArgumentParser(
        "python -m lockstep.benchmarks.exhausted_faults", description="Tells which faults every small program finds."
    )
    parser.add_argument("file", type=Path, help="keeps a line for each fault; a run goes on where it stopped")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="only the I-th of N parts (default: 1/1)")
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    names = sorted(name for name in every_fault() if ".kernels_" not in name)
    done = _done(asked.file)
    world = SimWorld()
    try:
        for name in itertools.islice(names, part - 1, None, parts):
            if name not in done:
                with asked.file.open("a") as file:
                    file.write(json.dumps({"fault": name, **_of(name, world)}) + "\n")
    finally:
        world.close()
    print("\n".join(lines(list(_done(asked.file).values()))))


def _done(file: Path) -> dict[str, dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {each["fault"]: each for each in map(json.loads, lines)}


def _of(name: str, world: World) -> dict[str, Any]:
    """At which size it is found, at the latest; or why not."""
    trial = Trial(described(name, describe(name)), world)
    claims = trial.claims
    if claims.kernels or claims.collectives or claims.of_one_kind:
        return {"outside": "trains by no program"}
    laws = [every_law()[law] for law in every_fault()[name].killed_by]
    beside = {law.name: _always_beside(law, claims) for law in laws}
    if all(beside.values()):
        return {"outside": beside[laws[0].name], "law": laws[0].name}
    _, failing = look(trial, 0, language.count(TRIED), TRIED)
    if failing is not None:
        ((shape, _),) = language.programs(TRIED, failing, failing + 1)
        return {"found": shape.size}
    law = next(law for law in laws if not beside[law.name])
    found = search(law, trial, 300, seed_value=0).failures
    drawn = [failure.broken.scenario for failure in found if isinstance(failure.broken.scenario, Scenario)]
    sizes = [(size, each) for each in drawn if (size := language.size_of(each)) is not None]
    if not sizes:
        return {"outside": _reason(drawn[0]) if drawn else f"no program: {law.number}", "law": law.name}
    size, least = min(sizes, key=lambda pair: pair[0])
    if size > DEFAULT_SIZE:
        return {"outside": f"a program of {size} parts", "law": law.name}
    try:
        check(trial, least, True)
    except (LawBroken, Refused):
        return {"found": size}
    return {"missed": law.name, "size": size, "scenario": repr(least)}


@cache
def _always_beside(law: Law, claims: Claims) -> str:
    """Something that is not of the core language, and that all programs have that a law draws. Empty: there is none."""
    programs = [_program(drawn) for drawn in sample(law.draws(claims), DRAWN)]
    if not all(programs):
        return f"programs of another kind, {law.number}"
    each = [{name for name in FEATURES if name not in CORE and FEATURES[name].occurs(one)} for one in programs if one]
    return ", ".join(sorted(set.intersection(*each))) if each else ""


def _program(drawn: Any) -> Scenario | None:
    """The program that was drawn, by itself or beside something else."""
    return next((one for one in (drawn if isinstance(drawn, tuple) else (drawn,)) if isinstance(one, Scenario)), None)


def _reason(scenario: Scenario) -> str:
    """The part of a program that is not of the core language."""
    other = [name for name, feature in FEATURES.items() if name not in CORE and feature.occurs(scenario)]
    if other:
        return ", ".join(other)
    if scenario.world_size not in language.RANKS:
        return f"{scenario.world_size} ranks"
    if any(len(parameter.shape) != 1 or not parameter.trainable for parameter in scenario.parameters):
        return "parameters that are frozen, or of other dimensions than one"
    return "other sizes, caps or events"


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """The table of all faults, and their counts."""
    sizes = Counter(each["found"] for each in found if "found" in each)
    inside = [each for each in found if "outside" not in each]
    yield f"{len(found)} faults, {len(inside)} with a program inside of the bound, {sum(sizes.values())} found"
    yield "found at size: " + ", ".join(f"{size}: {count}" for size, count in sorted(sizes.items()))
    for each in (each for each in inside if "missed" in each):
        yield f"missed: {each['fault']}: {each['missed']}, size {each['size']}"
    outside = Counter(each["outside"] for each in found if "outside" in each)
    yield from (f"outside: {count:4} {why}" for why, count in outside.most_common())


if __name__ == "__main__":
    main()
