"""Collectives that a failed run lacks: those for the gradient of the first wrong parameter, or all of them."""

from lockstep.oracle.events import Backward
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.diagnosis import Diagnosis
from lockstep.properties.naming import element_name, parameter_name
from lockstep.properties.reports.labels import Labels, labels, once
from lockstep.worlds.contract import Collective

FROM_ROOT = ("broadcast", "scatter")  # of these only the root's input travels
NONE_AT_ALL = "No collective is called after construction."


def missing(diagnosis: Diagnosis) -> list[str]:
    """One sentence, or none where it is not certain, since a number on the wire may be a gradient of that parameter."""
    trained, scenario, difference = diagnosis.trained, diagnosis.broken.scenario, diagnosis.broken.difference
    if trained is None or scenario.world_size == 1:
        return []
    if not any(trained):
        return [NONE_AT_ALL]
    if difference is None or difference.quantity != "gradient" or difference.expected is None:
        return []
    parameter = difference.parameter
    if not _is_due(scenario, difference.place, parameter) or not _is_local(diagnosis, scenario, difference.rank):
        return []
    may = any(
        _may_carry(call, rank, labels(scenario, scenario.role(rank)), _names(scenario, parameter))
        for rank, calls in enumerate(trained)
        for call in calls
    )
    return [] if may else [f"No collective carries a gradient of {parameter_name(parameter)}."]


def _is_due(scenario: Scenario, place: int, parameter: int) -> bool:
    """True if a backward that synchronizes has reached the parameter up to that event."""
    return any(
        at <= place and batch.synchronize and any(parameter in order for order in batch.orders)
        for at, batch in scenario.events(Backward)
    )


def _is_local(diagnosis: Diagnosis, scenario: Scenario, rank: int) -> bool:
    """True if it is known that nothing of another rank is in the wrong value."""
    per_rank = scenario.samples // scenario.world_size
    mine = (share.sample // per_rank == scenario.role(rank) for share in diagnosis.shares if share.actual)
    return bool(diagnosis.shares) and all(mine)


def _names(scenario: Scenario, parameter: int) -> set[str]:
    """The names of its elements, and of those of parameters that are the same tensor."""
    tensor, every = scenario.tensor(parameter), range(len(scenario.parameters))
    same = [index for index in every if scenario.tensor(index) == tensor]
    return {element_name(scenario, index, at) for index in same for at in range(scenario.parameters[index].count)}


def _may_carry(call: Collective, rank: int, called: Labels, names: set[str]) -> bool:
    """True if a number that this rank sends has one of these names, or none at all, so that it may be anything."""
    if not call.count or call.operation == "recv" or (call.operation in FROM_ROOT and call.root != rank):
        return False
    if call.sent is None or call.dtype not in FORMATS:
        return True
    sent = call.sent.tolist()
    meant = once([called.get(value, []) for value in sent], sent)
    return any(value != 0 and (not each or not names.isdisjoint(each)) for value, each in zip(sent, meant, strict=True))
