"""Run samplers on a trial's world, for P20."""

import json
from dataclasses import asdict, replace
from typing import Any

from lockstep.properties.data.dealing import Dealing
from lockstep.properties.errors import judge_errors
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job, Outcome


def run(trial: Trial, dealing: Dealing, function: str, world_size: int | None = None, **more: Any) -> Outcome:
    """Run a function of `properties.data.rank` on every rank. ``more``: further arguments of the function.

    Raises LawBroken or Refused if a rank has no result.
    """
    ranks = dealing.world_size if world_size is None else world_size
    asked = {"implementation": trial.implementation.name, "dealing": asdict(dealing), **more}
    outcome = trial.outcome(Job(f"lockstep.properties.data.rank:{function}", json.dumps(asked), ranks))
    judge_errors(dealing, outcome)
    trial.ended(outcome)
    return outcome


def results(outcome: Outcome) -> list[Any]:
    """The observations of each rank."""
    return [report.result for report in outcome]


def together(before: Outcome, after: Outcome) -> Outcome:
    """Both runs as one outcome for a report, if the second one continued on another number of ranks."""
    reports = []
    for rank in range(max(len(before), len(after))):
        mine = [outcome[rank] for outcome in (before, after) if rank < len(outcome)]
        told: list[Any] = []
        for outcome in (before, after):
            if rank < len(outcome):
                seen: Any = outcome[rank].result
                told += [(f"of {len(outcome)}, {what}", items) for what, items in seen["got"]]
        reports.append(replace(mine[-1], result={"got": told}))
    return tuple(reports)
