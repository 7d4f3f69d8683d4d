"""The core of a failure: the least of its program that goes wrong by itself.

A law's smallest program has in it what the law is about, such as a step or a file. Where less of it computes wrong
values already, or does not run to its end, not this law alone is broken; and what breaks many laws has one core.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.events import Backward, Event, Freeze, Replace, Step, Write
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.judging import judge
from lockstep.properties.searching.search import SHRINK_LIMIT, Failure, took_the_clock
from lockstep.properties.strategies.scenarios import adds_up_rounded_means
from lockstep.properties.strategies.within import beyond, reads_stepped_gradients
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused
from lockstep.worlds.contract import to_blame

Orders = tuple[tuple[int, ...], ...]
# Runs on the simulated world, and of these such as only a clock ends; no seconds: the core of a failure is the same on
# any machine. The most that was seen is 46, for a tenth of a second each.
MOST_RUNS, MOST_LATE = 100, 3


def core(trial: Trial, failure: Failure) -> Scenario | None:
    """The least of a failure's program that goes wrong in the same manner, held to the oracle alone, on the simulated
    world. None: the whole of it does not go wrong there as the failure does, or only after some time.
    """
    scenario = failure.broken.scenario
    simulated = trial.world if trial.world.name == "sim" else trial.sim() if trial.sim is not None else None
    if not isinstance(scenario, Scenario) or simulated is None:
        return None
    apart = replace(trial, world=simulated, confirm_on=None, limit=SHRINK_LIMIT, witnessed=Counter(), left=Counter())
    whole = goes_wrong(apart, scenario)
    if whole is None or took_the_clock(whole) or not explains(whole, failure, trial):
        return None
    late = 0

    def fails(smaller: Scenario) -> bool:
        nonlocal late
        broken = goes_wrong(apart, smaller) if late < MOST_LATE else None
        late += broken is not None and took_the_clock(broken)
        return _manner(broken) == _manner(whole)

    return least(scenario, fails)


def explains(whole: LawBroken, failure: Failure, trial: Trial) -> bool:
    """Whether a program that goes wrong by itself goes wrong as it did under the law: with a value that is not right
    before or where the law saw one, or with the same errors. Those of real ranks are others, for the same reason.
    """
    mine, its = failure.broken.difference, whole.difference
    if type(whole) is not type(failure.broken) or (mine is None) != (its is None):
        return False
    if mine is not None and its is not None:
        return its.place <= mine.place
    return _manner(whole) == _manner(failure.broken) or (trial.world.name != "sim" and failure.simulated)


def _manner(broken: LawBroken | None) -> tuple[Any, ...] | None:
    """How a program goes wrong: what is wrong first, and after what kind of event; or the kinds of its errors. What a
    smaller program does in another manner may have another cause.
    """
    if broken is None:
        return None
    if (difference := broken.difference) is not None:
        after = type(broken.scenario.program[difference.place]) if difference.place >= 0 else None
        return type(broken), difference.quantity, after
    told = to_blame(broken.outcome).values()
    return type(broken), {(e.kind, e.message.partition(":")[0] if e.kind == "raised" else "") for e in told}


def least(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Of a scenario that fails, the least that still does: nothing simpler fails that differs in one thing."""
    tried = {repr(scenario)}
    while True:
        for simpler in _simpler(scenario):
            if _size(simpler) >= _size(scenario) or repr(simpler) in tried:
                continue
            if len(tried) > MOST_RUNS:
                return scenario
            tried.add(repr(simpler))
            if fails(simpler):
                scenario = simpler
                break
        else:
            return scenario


def goes_wrong(trial: Trial, scenario: Scenario) -> LawBroken | None:
    """How a program goes wrong by itself, if it does, and if the oracle can tell."""
    if beyond(trial.claims, scenario) or reads_stepped_gradients(scenario):
        return None
    try:
        if adds_up_rounded_means(scenario, trial.expected(scenario), not trial.claims.silent_no_sync):
            return None
        judge.by_the_oracle(trial, scenario, "")
    except LawBroken as broken:
        return broken
    except (Refused, Inexact, UnsatisfiedAssumption):
        pass
    return None


def _size(scenario: Scenario) -> tuple[int, int, int, int, int, str]:
    """What is simpler comes first: fewer events, ranks, parameters; all of them used; then what takes fewer words."""
    uses = sum(len(order) for batch in scenario.microbatches for order in batch.orders)
    places = scenario.samples * len(scenario.microbatches) * len(scenario.parameters)
    words = repr(scenario)
    return len(scenario.program), scenario.world_size, len(scenario.parameters), places - uses, len(words), words


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that differ in one thing, without those that mean nothing."""
    for changes in _changes(scenario):
        try:
            yield replace(scenario, **changes)
        except ValueError:
            continue


def _changes(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """What may be otherwise, one thing at a time; the most that may go comes first."""
    program, parameters = scenario.program, scenario.parameters
    for length in range(len(program) - 1, 0, -1):
        for first in range(len(program) - length + 1):
            yield {"program": program[:first] + program[first + length :]}
    for item in fields(Scenario):
        if item.default is not MISSING:
            yield {item.name: item.default}
    each = scenario.samples // scenario.world_size
    yield {"program": _with_orders(program, lambda orders: orders[::each])}
    for rank in range(scenario.world_size):
        fewer = _with_orders(program, lambda orders: orders[: rank * each] + orders[(rank + 1) * each :])  # noqa: B023
        yield {"world_size": scenario.world_size - 1, "replicas": 1, "program": fewer}
    for index, parameter in enumerate(parameters):
        yield _without(scenario, index)
        for plain in (Parameter(parameter.shape), Parameter((1,), parameter.dtype), Parameter((1,))):
            yield {"parameters": (*parameters[:index], plain, *parameters[index + 1 :])}
    everything = tuple(index for index, parameter in enumerate(parameters) if parameter.trainable)
    for change in (lambda orders: (everything,) * len(orders), sorted, lambda orders: map(sorted, orders)):
        yield {"program": _with_orders(program, change)}
    for index, event in enumerate(program):
        if isinstance(event, Backward):
            for plain_one in (Backward(event.orders), Backward(event.orders, event.synchronize)):
                yield {"program": (*program[:index], plain_one, *program[index + 1 :])}
        elif isinstance(event, Step) and event.groups is not None:
            yield {"program": (*program[:index], Step(), *program[index + 1 :])}


def _with_orders(program: tuple[Event, ...], change: Callable[[Orders], Iterable[Iterable[int]]]) -> tuple[Event, ...]:
    """The program with other orders in each Backward."""
    return tuple(
        replace(event, orders=tuple(map(tuple, change(event.orders)))) if isinstance(event, Backward) else event
        for event in program
    )


def _without(scenario: Scenario, gone: int) -> dict[str, Any]:
    """What changes where a parameter is left out, which the others are counted without."""

    def left(indices: Iterable[int]) -> tuple[int, ...]:
        return tuple(index - (index > gone) for index in indices if index != gone)

    parameters = (
        parameter if parameter.tied is None else replace(parameter, tied=parameter.tied - (parameter.tied > gone))
        for index, parameter in enumerate(scenario.parameters)
        if index != gone
    )
    program = (
        replace(event, parameters=left(event.parameters)) if isinstance(event, (Freeze, Replace, Write)) else event
        for event in _with_orders(scenario.program, lambda orders: map(left, orders))
    )
    return {
        "parameters": tuple(parameters),
        "program": tuple(program),
        "groups": tuple(replace(group, parameters=left(group.parameters)) for group in scenario.groups),
        "units": tuple(map(left, scenario.units)),
        "outside": left(scenario.outside),
    }
