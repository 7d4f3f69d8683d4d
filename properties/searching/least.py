"""Reduce a failing program: remove or simplify one thing at a time."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import Event
from lockstep.oracle.model import LAYOUTS, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import events
from lockstep.properties.events.facet import Orders
from lockstep.properties.searching.greedy import descend

# A limit in runs, not in seconds, so that the result is the same on any machine. At most 46 runs were seen, each a
# tenth of a second.
MOST_RUNS = 100


def least(scenario: Scenario, fails: Callable[[Scenario], bool], most_runs: int = MOST_RUNS) -> Scenario:
    """Reduce a failing scenario until no simpler scenario that differs in one thing fails.

    After ``most_runs`` runs, the simplest failing scenario so far is returned.
    """

    return descend(scenario, neighbours, fails, most_runs)


def neighbours(scenario: Scenario) -> Iterator[Scenario]:
    """The simpler scenarios that differ from this one in one thing."""
    size = _size(scenario)
    return (each for each in _simpler(scenario) if _size(each) < size)


def _size(scenario: Scenario) -> tuple[int, int, int, int, int, int, str]:
    """The sort key of scenarios, simpler ones first: events, ranks, parameters, unused ones, odd ones, length
    of repr.
    """
    uses = sum(len(order) for batch in scenario.microbatches for order in batch.orders)
    places = scenario.samples * len(scenario.microbatches) * len(scenario.parameters)
    odd = sum((each.shape == ()) + (each.dtype != Parameter.dtype) for each in scenario.parameters)
    words, parameters = repr(scenario), len(scenario.parameters)
    return len(scenario.program), scenario.world_size, parameters, places - uses, odd, len(words), words


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """The valid scenarios that differ from this one by one simplification."""
    for changes in _changes(scenario):
        try:
            yield replace(scenario, **changes)
        except ValueError:
            continue


def _changes(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The simplifications of a scenario, one at a time; the largest comes first."""
    program, parameters = scenario.program, scenario.parameters
    for length in range(len(program) - 1, 0, -1):
        for first in range(len(program) - length + 1):
            yield {"program": program[:first] + program[first + length :]}
    for item in fields(Scenario):
        if item.default is not MISSING:
            yield {item.name: item.default}
    for caller in _less_unusual(scenario.caller):
        yield {"caller": caller}
    each = scenario.samples // scenario.world_size
    yield {"program": _with_orders(program, lambda orders: orders[::each])}
    for rank in range(scenario.world_size):
        fewer = _with_orders(program, lambda orders: orders[: rank * each] + orders[(rank + 1) * each :])  # noqa: B023
        yield {"world_size": scenario.world_size - 1, "replicas": 1, "program": fewer, **_without_rank(scenario, rank)}
    yield {"parameters": tuple(replace(p, shape=(1,), layout=LAYOUTS[0]) for p in parameters)}
    yield {"parameters": tuple(replace(p, dtype=Parameter.dtype) for p in parameters)}
    for index, parameter in enumerate(parameters):
        yield _without(scenario, index)
        plain = [Parameter(parameter.shape), Parameter((1,), parameter.dtype), Parameter((1,))]
        plain += [replace(parameter, shape=(2,), layout=LAYOUTS[0])] * (parameter.count > 2)
        for plainer in plain:
            yield {"parameters": (*parameters[:index], plainer, *parameters[index + 1 :])}
    everything = tuple(index for index, parameter in enumerate(parameters) if parameter.trainable)
    for change in (lambda orders: (everything,) * len(orders), _all_of_any, sorted, lambda orders: map(sorted, orders)):
        yield {"program": _with_orders(program, change)}
    for simpler in events.simpler(program):
        yield {"program": simpler}


def _all_of_any(orders: Orders) -> Orders:
    """Let every rank use every parameter that any rank uses.

    Parameters that are frozen at first may be trained later.
    """
    return (tuple(sorted({index for order in orders for index in order})),) * len(orders)


def _less_unusual(caller: Caller) -> Iterator[Caller]:
    """The callers with one habit set to its default, as far as they are valid."""
    for item in fields(Caller):
        usual: dict[str, Any] = {item.name: item.default}
        with contextlib.suppress(ValueError):
            yield replace(caller, **usual)


def _with_orders(program: tuple[Event, ...], change: Callable[[Orders], Iterable[Iterable[int]]]) -> tuple[Event, ...]:
    """The program with changed orders in each micro-batch."""
    return tuple(events.facet_of(event).reordered(event, change) for event in program)


def _without_rank(scenario: Scenario, gone: int) -> dict[str, Any]:
    """The other fields that change if a rank is left out together with its samples."""
    roles, differs = _left_out(gone)(scenario.roles), scenario.differs
    if differs is not None:
        differs = replace(differs, rank=max(differs.rank - (differs.rank >= gone), 0))
    return {"roles": () if roles == tuple(range(len(roles))) else roles, "differs": differs}


def _left_out(gone: int) -> Callable[[Iterable[int]], tuple[int, ...]]:
    """A function that removes the number ``gone`` from a sequence and renumbers the rest."""
    return lambda indices: tuple(index - (index > gone) for index in indices if index != gone)


def _without(scenario: Scenario, gone: int) -> dict[str, Any]:
    """The fields that change if a parameter is left out and the others are renumbered."""
    left, differs = _left_out(gone), scenario.differs
    if differs is not None:
        differs = None if differs.parameter == gone else replace(differs, parameter=left([differs.parameter])[0])
    parameters = (
        parameter if parameter.tied is None else replace(parameter, tied=parameter.tied - (parameter.tied > gone))
        for index, parameter in enumerate(scenario.parameters)
        if index != gone
    )
    return {
        "parameters": tuple(parameters),
        "program": tuple(events.facet_of(event).renumbered(event, left) for event in scenario.program),
        "groups": tuple(replace(group, parameters=left(group.parameters)) for group in scenario.groups),
        "units": tuple(map(left, scenario.units)),
        "outside": left(scenario.outside),
        "registered": left(scenario.registered),
        "differs": differs,
    }
