"""Scenarios that several laws make of others: what they compare a run with, or give a module of its own."""

from dataclasses import replace

from hypothesis import strategies as st

from oracle.program import Backward, Event, Raise, Scenario, ZeroGrad
from properties.claims import Claims
from properties.expected import is_exact
from properties.strategies.scenarios import exact_scenarios


def without_local(scenario: Scenario) -> Scenario:
    """The same without micro-batches inside `no_sync`; what those used, the next one that synchronizes uses as well.

    So that what an implementation sends may depend on which parameters were used since it last sent.
    """
    kept: list[Event] = []
    nothing: tuple[tuple[int, ...], ...] = ((),) * scenario.samples
    used = nothing
    for event in scenario.program:
        if isinstance(event, Backward):
            both = zip(event.orders, used, strict=True)
            used = tuple(tuple(dict.fromkeys((*order, *before))) for order, before in both)
            if event.synchronize:
                kept.append(replace(event, orders=used))
                used = nothing
            continue
        match event:
            case ZeroGrad(set_to_none=True) | Raise(drops_gradients=True):
                used = nothing
        kept.append(event)
    return replace(scenario, program=tuple(kept))


def one_by_one(scenario: Scenario) -> list[int]:
    """The parameters that are trained, each tensor once."""
    return [index for index, p in enumerate(scenario.parameters) if p.trainable and p.tied is None]


def with_one_unit(scenario: Scenario) -> Scenario:
    """The same, where the last parameter that is trained has a module of its own, and the root has the others."""
    return replace(scenario, units=(tuple(one_by_one(scenario)[-1:]),), outside=())


def with_one_rank_alike(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that one rank can run as well."""
    return exact_scenarios(claims, enclosed=False).filter(lambda scenario: is_alike_on_one_rank(scenario, claims))


def is_alike_on_one_rank(scenario: Scenario, claims: Claims) -> bool:
    """Whether one rank with all samples must have the same: an overflow of some ranks is not one of the whole batch.

    And coefficients of the whole batch may cancel where no rank's do: times a negative weight, zero is -0.0.
    """
    if any(batch.overflow for batch in scenario.microbatches):
        return False
    return is_exact(on_one_rank(scenario), claims)


def on_one_rank(scenario: Scenario) -> Scenario:
    """The same scenario with all samples on one rank, whose every error is everybody's."""
    program = (replace(event, rank=None) if isinstance(event, Raise) else event for event in scenario.program)
    return replace(scenario, world_size=1, replicas=1, program=tuple(program))
