"""Turn a failure into a defect with its minimal program, cause, faces and report, or assign it to a known defect."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.defects.by_itself import broken_by
from lockstep.properties.defects.cause import Cause, exact_claim, of_rounding
from lockstep.properties.defects.defect import Defect, the_same
from lockstep.properties.defects.ledger import Ledger
from lockstep.properties.defects.needs import needs
from lockstep.properties.diagnosing.confirming import confirm
from lockstep.properties.diagnosing.core import core, goes_wrong, manner
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.diagnosing.rounding import rounded_to
from lockstep.properties.law import Law, sentence
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.reports.failure import FOLDER, also_broken, filed_failure, report_name
from lockstep.properties.running.budget import Budget
from lockstep.properties.searching.least import least
from lockstep.properties.searching.search import SHRINK_LIMIT, Failure, how_broken
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.independent import sample
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, SilentlyWrong
from lockstep.worlds import process

PLAIN = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
PLAINEST = needs(PLAIN)
MOST_RUNS = 400  # for reducing a drawn program to a minimal one
LOOKED_AT = 12  # programs with the cause that are tried for other faces
CHANCE = "by chance"


@dataclass(frozen=True)
class Minimal:
    """A minimal failing program, the law that it breaks, and the failure.

    ``core``: the program itself, if it fails without the law for which it was drawn; else None.
    """

    law: Law
    trial: Trial
    failure: Failure
    core: Scenario | None
    cause: Cause


def judged(
    law: Law, trial: Trial, budget: Budget, ledger: Ledger, failure: Failure, draws: SearchStrategy[Any]
) -> Defect | None:
    """The defect of a failure found under a law, filed in the ledger.

    None if the failure is an artefact of the simulation.
    """
    if trial.confirm_on is not None:
        process.prepare(2)  # for the processes that will confirm it: torch is imported while the failure shrinks
    for minimal in _minimal(law, trial, budget, failure, draws):
        faces = [minimal, *(_other_faces(law, minimal) if minimal.core is not None else ())]
        # Silent corruption, the worst kind, comes first.
        faces.sort(key=lambda face: not isinstance(face.failure.broken, SilentlyWrong))
        confirmed = confirm(faces[0].law, faces[0].trial, faces[0].failure)
        if confirmed is None:
            continue
        failed, runs = confirmed.seen
        how = repr(manner(confirmed.broken)) if failed == runs else CHANCE
        cause = Cause(frozenset.intersection(*(face.cause.needs for face in faces)), minimal.cause.only)
        if dtype := rounded_to(trial, confirmed.broken):
            cause = of_rounding(dtype)
        manners = {how, *(repr(manner(face.failure.broken)) for face in faces[1:])}
        if (again := the_same(ledger.defects(trial.implementation.name), cause, manners)) is not None:
            again = _with_faces(again, [replace(faces[0], failure=confirmed), *faces[1:]])
            ledger.file(again)
            return again
        also = budget.others.also_broken(trial, confirmed.broken, faces[0].law)
        return _filed(ledger, law, [replace(faces[0], failure=confirmed), *faces[1:]], cause, how, also)
    return None


def _minimal(law: Law, trial: Trial, budget: Budget, failure: Failure, draws: SearchStrategy[Any]) -> list[Minimal]:
    if (found := _core(law, trial, failure)) is not None:
        return [found]
    if (plainest := _plainest(law, trial)) is not None:
        return [plainest]
    shrunk = budget.spend(law, trial, draws=draws).failures or [failure]
    shrunk.sort(key=lambda each: (not isinstance(each.broken, SilentlyWrong), len(repr(each.broken.scenario))))
    return [_core(law, trial, each) or _of_the_law(law, trial, each) for each in shrunk]


def _plainest(law: Law, trial: Trial) -> Minimal | None:
    """The plainest program, if it fails already; then no other program need be examined.

    None for claims of a family with laws of its own, for example samplers, because these run no programs.
    """
    if trial.claims.family:
        return None
    broken = goes_wrong(replace(trial, aside=None, limit=SHRINK_LIMIT, witnessed=Counter()), PLAIN)
    return None if broken is None else _core(law, trial, Failure(PLAIN, broken))


def _core(law: Law, trial: Trial, failure: Failure) -> Minimal | None:
    smallest = core(trial, failure, MOST_RUNS)
    if smallest is None:
        return None
    simulated = trial if trial.world.name == "sim" or trial.sim is None else replace(trial, world=trial.sim())
    return _by_itself(law, replace(simulated, witnessed=Counter(), left=Counter()), smallest)


def _by_itself(met: Law, trial: Trial, smallest: Scenario) -> Minimal | None:
    """A minimal program that fails by itself, with the law that it breaks; None if it does not fail by itself."""
    broken = goes_wrong(replace(trial, confirm_on=None, limit=SHRINK_LIMIT), smallest)
    if broken is None:
        return None
    law = broken_by(broken, met, trial)
    try:
        law.check(trial, smallest)
    except LawBroken as again:
        return Minimal(law, trial, Failure(smallest, again), smallest, Cause(needs(smallest) - PLAINEST))
    return None


def _of_the_law(law: Law, trial: Trial, failure: Failure) -> Minimal:
    """A failure that does not occur without its law, so that the law is part of the cause. A run of a real model that
    breaks the plainest law on real models is wrong for all laws.
    """
    scenario = failure.broken.scenario
    only = "" if isinstance(scenario, ModelScenario) and _is_wrong(trial, scenario) else law.number
    return Minimal(law, trial, failure, None, Cause(needs(scenario) - PLAINEST, only))


def _is_wrong(trial: Trial, scenario: ModelScenario) -> bool:
    """True if the gradients of a real model are wrong."""
    mean = every_law()["test_a_real_model_gets_the_mean_gradient_of_the_whole_batch"]
    alone = replace(trial, aside=None, confirm_on=None, limit=SHRINK_LIMIT, witnessed=Counter(), left=Counter())
    return how_broken(mean, alone, scenario, []) is not None


def _filed(ledger: Ledger, met: Law, faces: list[Minimal], cause: Cause, how: str, also: Sequence[str]) -> Defect:
    """Make a defect and file it. ``also``: the other laws that the program of the first face breaks."""
    first, trial = faces[0], faces[0].trial
    name = trial.implementation.name
    told = [_told(face) for face in faces]
    told[0]["report"] += also_broken(also)
    identity = ledger.next_id(name)
    file = (trial.report or FOLDER) / f"{report_name(trial)}-{identity}.txt"
    defect = Defect(
        identity,
        name,
        (cause,),
        first.law.number,
        sentence(first.law),
        f"{met.number} {sentence(met)}",
        trial.world.name,
        how,
        exact_claim(trial.claims, cause, first.core) if first.core is not None and not cause.rounds_to else "",
        _written(file, "\n\n".join(face["report"] for face in told)),
        tuple(told),
    )
    ledger.file(defect)
    return defect


def _told(face: Minimal) -> dict[str, Any]:
    """The data of a face, with its report."""
    diagnosis = replace(diagnose(face.trial, face.failure, to_the_core=False), core=face.core)
    return filed_failure(face.law, face.trial, diagnosis)


def _with_faces(defect: Defect, faces: Sequence[Minimal]) -> Defect:
    """The defect with faces of other verdicts than it has, which are added to its report."""
    had = {face["verdict"] for face in defect.faces}
    more = [_told(face) for face in faces if face.failure.verdict not in had]
    if not more:
        return defect
    defect = replace(defect, faces=(*defect.faces, *more))
    if defect.told:
        _written(Path(defect.told), "\n\n".join(str(face["report"]) for face in defect.faces))
    return defect


def _other_faces(met: Law, minimal: Minimal) -> list[Minimal]:
    """Other kinds of failures of programs that contain the cause, each one reduced."""
    trial = minimal.trial
    plain = replace(trial, confirm_on=None, limit=SHRINK_LIMIT, witnessed=Counter())
    cause = Cause(minimal.cause.telling)
    seen = {type(minimal.failure.broken)}
    found: list[Minimal] = []
    has = tuple(need for need in cause.needs if need in FEATURES and FEATURES[need].claimed(trial.claims))
    try:
        drawn = sample(exact_scenarios(trial.claims, has=has[:2]), LOOKED_AT)
    except (HypothesisException, ValueError):
        return found
    for scenario in drawn:
        if cause.needs and not cause.within(scenario):
            continue
        broken = goes_wrong(plain, scenario)
        if broken is None or type(broken) in seen:
            continue

        way = manner(broken)

        def alike(smaller: Scenario, way: Any = way) -> bool:
            return manner(goes_wrong(plain, smaller)) == way

        smallest = least(scenario, lambda smaller: (cause.within(smaller) or not cause.needs) and alike(smaller))
        if cause.needs and not cause.within(least(smallest, alike)):
            continue  # it fails in this manner without the cause, too: it is another defect
        if (face := _by_itself(met, trial, smallest)) is not None:
            seen.add(type(broken))
            found.append(face)
    return found


def _written(path: Path, text: str) -> str:
    """Write a report and return its file; empty if it could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    except OSError:
        return ""
    return str(path)
