"""Run trainings with experts on a trial's world, for P21, and compare the results."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lockstep.properties.errors import judge_errors
from lockstep.properties.experts.expected import Expected, begin, expected
from lockstep.properties.experts.mixture import Mixture
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import Job, Outcome


def run(trial: Trial, mixture: Mixture, world_size: int, saved: Any = None) -> Outcome:
    """Run the steps before saving, or those after loading. Raises LawBroken or Refused if a rank has no result."""
    weights = {name: [float(each) for each in values] for name, values in begin(mixture).items()}
    asked = {"implementation": trial.implementation.name, "mixture": asdict(mixture)}
    payload = json.dumps({**asked, "weights": weights, "saved": saved})
    outcome = trial.outcome(Job("lockstep.properties.experts.rank:steps", payload, world_size))
    judge_errors(mixture, outcome)
    trial.ended(outcome)
    return outcome


def results(outcome: Outcome) -> list[Any]:
    """The observations of each rank."""
    return [report.result for report in outcome]


def each(trial: Trial, mixture: Mixture, outcome: Outcome) -> Iterator[tuple[int, int, Any, Expected]]:
    """The number of each step before saving, each rank, and the seen and the expected results there."""
    for place, due in enumerate(expected(mixture, trial.claims.expert_divisor)[: len(mixture.steps)]):
        for rank, seen in enumerate(results(outcome)):
            yield place, rank, seen["got"][place], due


def judge_gradients(mixture: Mixture, outcome: Outcome, place: int, rank: int, seen: Any, due: Expected) -> None:
    """Raise SilentlyWrong for the first gradient of a rank that differs from the expected one."""
    for name, values in seen["gradients"].items():
        right = due.gradients[name]
        if not all(wanted.holds(got) for got, wanted in zip(values, right, strict=True)):
            told = ", ".join(map(str, right))
            words = f"In step {place} the gradient of {name} on rank {rank} is {values}; [{told}] is due."
            raise SilentlyWrong(words, mixture, outcome)


def judge_weights(mixture: Mixture, outcome: Outcome, when: str, rank: int, seen: Any, due: Any) -> None:
    """Raise SilentlyWrong for the first parameter of a rank that differs from the expected one."""
    for name, values in seen.items():
        right = [float(each) for each in due[name]]
        if values != right:
            raise SilentlyWrong(f"{when} {name} of rank {rank} is {values}; {right} is due.", mixture, outcome)
