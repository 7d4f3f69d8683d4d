"""Run a real model on a trial's world."""

import json
from typing import Any

from lockstep.properties.claims import EQUAL_FROM, SHARDS_PARAMETERS
from lockstep.properties.errors import judge_errors
from lockstep.properties.models import judge
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.trial import Run, Trial
from lockstep.worlds.contract import Job

FUNCTION = "lockstep.properties.models.rank:train"  # a name, so that torch is imported only by the ranks


def run(trial: Trial, scenario: ModelScenario) -> Run:
    """Run a model, like `Trial.run` for the probes. Raises LawBroken or Refused if not every rank finished."""
    asked: Any = scenario  # a verdict reports it like a program
    told: dict[str, Any] = {} if trial.claims.equal_from == EQUAL_FROM[0] else {"equal_from": trial.claims.equal_from}
    if trial.claims.is_optimizer:
        told |= {"averages_in_step": trial.claims.averages_in_step, "saved_by": trial.claims.saved_by}
    told |= {"pieces": True} if trial.claims.stage == SHARDS_PARAMETERS else {}
    payload = json.dumps({"implementation": trial.implementation.name, "scenario": scenario.to_json(), **told})
    outcome = trial.outcome(Job(FUNCTION, payload, scenario.world_size))
    judge_errors(asked, outcome)
    found = Run(asked, outcome, trained=None, choices=told)
    judge.whole(found, "A real model's parameters are not whole.")
    trial.ended(outcome)
    return found
