"""Defects told apart: faults that ship are composed into one class, drawn with a fixed seed, and counted is how many of
them come out as defects of their own, and how many defects are none of them.

    python -m lockstep.benchmarks.separation --compositions 60 --seed 0

Each composition is held to the laws that find its faults and to the plainest ones, on simulated ranks in this process.
A defect is of a planted fault if the fault alone goes wrong on its smallest program, or has the same cause by itself.
Every third composition has a twin in it, too, which is odd but right: a defect that only it explains is invented.
"""

import argparse
import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lockstep.oracle.program import NAMES, Scenario
from lockstep.properties.catalogue import every_fault, every_law, every_twin
from lockstep.properties.claims import Claims
from lockstep.properties.defects.cause import Cause
from lockstep.properties.defects.defect import Defect
from lockstep.properties.defects.needs import has
from lockstep.properties.diagnosing.core import goes_wrong
from lockstep.properties.law import PLAINEST, Law, sentence
from lockstep.properties.running.apart import Docket
from lockstep.properties.running.session import Session
from lockstep.properties.searching.search import how_broken
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial

# Each breaks programs of one kind, and leaves the plainest one alone. By the class that they are a few lines over.
POOL: Mapping[str, Sequence[str]] = {
    "StaticBuckets": (
        "accumulation:NoSyncIsNotExceptionSafe",
        "accumulation:NoSyncDoesNotNest",
        "start:FrozenNotBroadcast",
        "start:BuffersNotBroadcast",
        "unused:ZerosForUnused",
        "unused:DividesByContributors",
        "evaluating:SwitchesOffToEvaluate",
        "evaluating:RecordsEvaluations",
        "cost:NewParametersHaveNoHooks",
        "binding:DropsWhatIsTrainedAgain",
        "binding:ZeroesWhatIsTrained",
        "binding:TrainsWhatIsFrozen",
        "cost:BroadcastsInsideNoSync",
        "cost:ReducesInsideNoSync",
        "cost:OneParameterInEachBucket",
        "precision:ReducesInBfloat16",
    ),
    "StaticBucketsTrainer": (
        "clipping:AlwaysTheLargest",
        "clipping:ScalesUp",
        "combined:ClipsTheFirstGroup",
        "combined:UnscalesOnceAStep",
    ),
}
TWINS: Mapping[str, Sequence[str]] = {
    "StaticBuckets": (
        "binding:TellsItselfInItsOwnWords",
        "buckets:RegistrationOrder",
        "buckets:CopiesNotViews",
        "asynchrony:PollsInReverse",
    ),
}
APART = {"known_fault", "source", "killed_by", "claims", "odd", "__init__"}  # of what faults of one class may all have
EXAMPLES = 60  # of each law

REPORTS = Path(tempfile.gettempdir(), "lockstep-separation")


def found(names: Sequence[str]) -> type:
    """The fault of that name, or several in one class, maybe with a twin."""
    faults = [_named(name) for name in names]
    claims: dict[str, Any] = dict(faults[0].claims)
    for fault in faults[1:]:
        claims |= {name: value for name, value in fault.claims.items() if not value or name not in claims}
    killed = tuple(dict.fromkeys(law for fault in faults for law in getattr(fault, "killed_by", ())))
    return type("And".join(fault.__name__ for fault in faults), tuple(faults), {"claims": claims, "killed_by": killed})


def _named(name: str) -> Any:
    return (
        every_twin()[f"lockstep.impls.twins.{name}"]
        if is_twin(name)
        else every_fault()[f"lockstep.impls.faults.{name}"]
    )


def is_twin(name: str) -> bool:
    """True if it is of what is odd but right."""
    return any(name in twins for twins in TWINS.values())


def touched(name: str) -> set[str]:
    """The parts of its class that a fault or a twin overrides."""
    own = vars(_named(name))
    return {each for each in own if each not in APART and not (each.startswith("__") and each.endswith("__"))}


def compositions_of(count: int, seed: int, alike: Callable[[str, str], bool]) -> Iterator[tuple[str, ...]]:
    """So many sets of two, three or four faults of one class, no two of which are alike or write one thing anew; every
    third has a twin in it that writes anew nothing of that.
    """
    draw, known = random.Random(seed), set[frozenset[str]]()
    while len(known) < count:
        base = draw.choice([*POOL, "StaticBuckets", "StaticBuckets"])
        pool = [*POOL[base]]
        draw.shuffle(pool)
        wanted, chosen = draw.choice((2, 3, 4)), list[str]()
        for name in pool:
            clash = any(touched(name) & touched(other) or alike(name, other) for other in chosen)
            if len(chosen) < wanted and not clash:
                chosen.append(name)
        if len(chosen) >= 2 and (key := frozenset(chosen)) not in known:
            known.add(key)
            own = set().union(*map(touched, chosen))
            room = [twin for twin in TWINS.get(base, ()) if not touched(twin) & own]
            yield (*chosen, *room[: len(known) % 3 == 0])


@dataclass(frozen=True)
class Checked:
    """The defects of a class, in how many seconds."""

    defects: tuple[Defect, ...]
    seconds: float


@cache
def checked(names: tuple[str, ...], examples: int = EXAMPLES) -> Checked:
    """The defects found in a composition, or in a fault alone."""
    cls = found(names)
    laws = [*dict.fromkeys([*PLAINEST, *cls.killed_by])]  # type: ignore[attr-defined]
    session = Session(cls, examples=examples, seed=0, laws=laws, report=REPORTS)
    docket, since = Docket(), time.monotonic()
    try:
        for law in session.held(probed=False, docket=docket):
            with contextlib.suppress(pytest.fail.Exception, pytest.skip.Exception):
                law.run(lambda name, value: None)
    finally:
        session.close()
    return Checked(docket.ledger.defects(), time.monotonic() - since)


def alike(one: str, other: str) -> bool:
    """True if no program tells two faults apart: the smallest ones that show the one all contain a cause of the other.
    So `TrainsWhatIsFrozen` goes wrong wherever anything is frozen, and `FrozenNotBroadcast` only shows there.
    """
    return _shows_in(one, other) or _shows_in(other, one)


def _shows_in(one: str, other: str) -> bool:
    """True if every defect of the other shows only in programs that show one of this."""
    mine = [cause for defect in checked((one,)).defects for cause in defect.causes]
    its = [(whole, cause) for whole in checked((other,)).defects for cause in whole.causes]
    return bool(its) and all(
        any(each.only in ("", cause.only) and each.needs <= _contained(whole, cause) for each in mine)
        for whole, cause in its
    )


def _contained(defect: Defect, cause: Cause) -> frozenset[str]:
    """The features in the smallest program of a defect, with what goes without saying."""
    return cause.needs if cause.only else cause.needs | has(eval(defect.faces[0]["scenario"], dict(NAMES)))


def is_ruled_out(fault: str, names: Sequence[str]) -> bool:
    """True if a composition does not claim the programs that show a fault: another fault of it declines a claim."""
    claims = found(names).claims  # type: ignore[attr-defined]
    alone = found((fault,)).claims  # type: ignore[attr-defined]
    declined = {name for name, value in claims.items() if not value and alone.get(name)}
    shown = [eval(face["scenario"], dict(NAMES)) for each in checked((fault,)).defects for face in each.faces]
    return bool(declined) and all(beyond(Claims(**claims), scenario) for scenario in shown)


def is_of(defect: Defect, fault: str) -> bool:
    """True if a defect of a composition is that fault."""
    own = {(cause.only, cause.telling) for each in checked((fault,)).defects for cause in each.causes}
    if any((cause.only, cause.telling) in own for cause in defect.causes):
        return True
    return any(_fails(fault, defect, face["scenario"]) for face in defect.faces)


def _fails(fault: str, defect: Defect, text: str) -> bool:
    """True if the fault alone goes wrong on a program, by itself or under the law of the defect: cost has only laws."""
    scenario = eval(text, dict(NAMES))
    if not isinstance(scenario, Scenario):
        return False
    session = Session(found((fault,)), examples=1, seed=0)
    try:
        trial: Trial = session.trial("sim")
        laws = [law for law in every_law().values() if sentence(law) == defect.law and judges_programs(law)]
        if any(how_broken(law, trial, scenario, []) for law in laws):
            return True
        return not defect.causes[0].only and goes_wrong(trial, scenario) is not None
    finally:
        session.close()


def judges_programs(law: Law) -> bool:
    """True if what the law draws is a program, and nothing beside it."""
    return law.check.__annotations__.get("scenario") is Scenario


def main() -> None:
    """Print what becomes of each composition, and the count."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.benchmarks.separation", description=main.__doc__)
    parser.add_argument("--compositions", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of each law")
    asked = parser.parse_args()
    planted = separated = invented = doubled = 0
    for names in compositions_of(asked.compositions, asked.seed, alike):
        faults = [name for name in names if not is_twin(name) and not is_ruled_out(name, names)]
        result = checked(names, asked.examples)
        whose = {defect.id: [name for name in faults if is_of(defect, name)] for defect in result.defects}
        told = {name for several in whose.values() for name in several}
        none = [name for name, several in whose.items() if not several]
        planted, separated, invented = planted + len(faults), separated + len(told), invented + len(none)
        doubled += len(whose) - len(none) - len(told)
        missing = [name for name in faults if name not in told]
        print(f"{result.seconds:5.1f} s  {', '.join(names)}: {len(whose)} defects", flush=True)
        for defect in result.defects:
            print(f"         {defect.id} {defect.verdict}, {defect.words()}: {', '.join(whose[defect.id]) or 'NONE'}")
        if missing:
            print(f"         not told: {', '.join(missing)}")
    print(f"{separated} of {planted} planted faults told, {invented} invented, {doubled} told more than once")


if __name__ == "__main__":
    main()
