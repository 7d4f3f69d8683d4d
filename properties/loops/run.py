"""Run training loops on a trial's world, for P19."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lockstep.properties.errors import judge_errors
from lockstep.properties.loops.expected import Expected, expected
from lockstep.properties.loops.training import Training
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job, Outcome


def run(trial: Trial, training: Training) -> Outcome:
    """Run all windows on every rank. Raises LawBroken or Refused if a rank has no result."""
    asked: dict[str, Any] = {"implementation": trial.implementation.name, "training": asdict(training)}
    asked["halves"] = trial.claims.follows_schedule
    outcome = trial.outcome(Job("lockstep.properties.loops.rank:windows", json.dumps(asked), training.world_size))
    judge_errors(training, outcome)
    trial.ended(outcome)
    return outcome


def each(trial: Trial, training: Training, outcome: Outcome) -> Iterator[tuple[int, int, Any, Expected]]:
    """The number of each window, each rank, and the seen and the expected results there."""
    due = list(expected(training, trial.claims.loss_mean, trial.claims.follows_schedule))
    for place, wanted in enumerate(due):
        for rank, report in enumerate(outcome):
            seen: Any = report.result
            yield place, rank, seen["got"][place], wanted
