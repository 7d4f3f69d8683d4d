"""The last check before a scenario runs: it must stay within the claims, whether it was drawn or derived by a law.

A scenario beyond the claims would give a false alarm.
"""

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM, MASTERS, Claims
from lockstep.properties.events import FACETS, facet_of
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.models import called_alike


def beyond(claims: Claims, scenario: Scenario) -> str:
    """The first part of the scenario that is not claimed, in a few words; empty if all of it is claimed."""
    for name, feature in FEATURES.items():
        if not feature.claimed(claims) and feature.occurs(scenario):
            return name
    if words := _set_up_beyond(claims, scenario):
        return words
    if claims.equal_from != EQUAL_FROM[0] and not _begins_with_forwards(scenario):
        return "something else than a forward right after construction"
    for facet in FACETS.values():
        if words := facet.beyond(claims, scenario):
            return words
    return ""


def _set_up_beyond(claims: Claims, scenario: Scenario) -> str:
    """The same for options of the whole scenario that are not features."""
    parameters = scenario.parameters
    if claims.wire_dtype and scenario.wire != claims.wire_dtype:
        return f"gradients that need not fit {claims.wire_dtype}"
    if scenario.world_size + scenario.outsiders > claims.most_ranks:
        return f"more than {claims.most_ranks} ranks"
    if len({parameter.dtype for parameter in parameters}) > 1 and not claims.several_dtypes:
        return "several dtypes"
    if any(parameter.dtype == "float64" for parameter in parameters) and not claims.float64:
        return "parameters in float64"
    if any(parameter.shape == () for parameter in parameters) and not claims.scalars:
        return "scalars"
    if scenario.broadcast_buffers and claims.buffers != "each":
        return "buffers broadcast before each forward"
    if scenario.masters and claims.stage is not None and not claims.masters:
        return "masters of a sharded optimizer"
    if claims.masters == MASTERS and not scenario.masters and FEATURES["16 bits"].occurs(scenario):
        return "16 bits without masters"
    if few_parameters(claims, scenario):
        return f"fewer than {claims.parameters_per_rank} parameters for each rank"
    if scenario.caller.makes_optimizer == "before" and not claims.optimizer_before:
        return "an optimizer that is made before wrapping"
    if scenario.caller.makes_optimizer == "after" and claims.stage is not None:
        return "an optimizer of the caller's own"
    if (scenario.caller.beside or scenario.caller.joint) and not claims.other_models:
        return "another model"
    if scenario.differs is not None and not claims.compares_models:
        return "models that differ"
    if claims.stage == 3 and scenario.units and not called_alike(scenario):
        return "units that not all ranks call in one order"
    if claims.plain_layers and not called_alike(scenario, in_layers=True):
        return "layers that not all ranks call in one order"
    return ""


def few_parameters(claims: Claims, scenario: Scenario) -> bool:
    """True if there are fewer trainable parameters for each rank than the implementation needs."""
    trained = [index for index in scenario.tensors if scenario.parameters[index].trainable]
    return len(trained) < claims.parameters_per_rank * scenario.world_size


def _begins_with_forwards(scenario: Scenario) -> bool:
    """True if each rank runs a forward first after its construction, or after a file is loaded."""
    return all(
        facet_of(event).forward
        for standing, event in zip(scenario.standings, scenario.program, strict=False)
        if standing.built
    )
