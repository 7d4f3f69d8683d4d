"""Options for the caller's habits, and for the order in which its model registers parameters."""

from dataclasses import replace
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.strategies.models import Options

MOST_DOUBLINGS = 3


def with_caller(scenario: Scenario, **changes: Any) -> Scenario | None:
    """The scenario with these habits of the caller; None if they do not fit the rest of it."""
    try:
        return replace(scenario, caller=replace(scenario.caller, **changes))
    except ValueError:
        return None


def throughout(scenario: Scenario, options: Options, claims: Claims) -> Scenario:
    """The scenario with the options for its caller applied, as far as they are claimed and fit the rest of it."""
    for name, form in options.items():
        scenario = with_caller(scenario, **_changes(name, form, claims)) or scenario
    if "registered" in options:
        count = len(scenario.parameters)
        turned = tuple((index + options["registered"]) % count for index in range(count))[::-1]
        scenario = replace(scenario, registered=() if turned == tuple(range(count)) else turned)
    return scenario


def _changes(option: str, form: int, claims: Claims) -> dict[str, Any]:
    """The changes of the caller's habits by an option; empty if the option is about something else."""
    hooks = {"hooked_before": bool(form // MOST_DOUBLINGS % 2)}
    match option:
        case "early optimizer":
            made = ["after"] * (claims.stage is None) + ["before"] * claims.optimizer_before
            return {"makes_optimizer": made[form % len(made)]}
        case "asked wrapper":
            return {"asks_the_wrapper": True}
        case "seeded":
            return {"seeded": True}
        case "hooks":
            return {"hooked": 1 + form % MOST_DOUBLINGS, **hooks}
        case "hooks on modules":
            return {"module_hooked": 1 + form % MOST_DOUBLINGS, **hooks}
        case "kept gradients":
            return {"keeps_gradients": True}
    return {}
