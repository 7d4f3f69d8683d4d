"""The entry points of every rank: run a scenario's program on an implementation, and observe it from outside.

Worlds call these functions by name. The input is JSON. The output is plain data and NumPy arrays.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.initial import initial_parameters
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import members
from lockstep.properties.companion import companion, partner, turns
from lockstep.properties.conditions import OF_CLAIMS, Conditions
from lockstep.properties.failure_place import note
from lockstep.properties.part import Part
from lockstep.properties.ranks import adapter, checkpoint, description
from lockstep.properties.ranks.events import ON_RANKS
from lockstep.properties.ranks.probes import Probe
from lockstep.properties.ranks.rank import Rank
from lockstep.properties.seen import Seen


@lru_cache(maxsize=8)
def read(payload: str) -> tuple[str, Scenario, Conditions]:
    """The implementation's name, the scenario, and the conditions; parsed once for all ranks of the simulated world."""
    request = json.loads(payload)
    return request.pop("implementation"), Scenario.from_json(request.pop("scenario")), Conditions.of(request)


def run_program(payload: str, rank: int, world_size: int, kind: Callable[..., Rank] = Rank) -> Seen:
    """Run a program as a `Rank`, or as a subclass ``kind`` that records more.

    ``payload``: the implementation's name, the scenario, and the `Conditions` that differ from the default. A rank
    outside the group that trains observes nothing.
    """
    name, scenario, conditions = read(payload)
    group, rank = members.enter(scenario, rank)
    if rank < 0:
        return {}
    ranks_program = kind(name, scenario, rank, group, conditions)
    if where := scenario.caller.beside or scenario.caller.joint:
        its = companion(scenario) if scenario.caller.beside else partner(scenario)
        other = Rank(name, its, rank, group, Conditions(**{each: getattr(conditions, each) for each in OF_CLAIMS}))
        (run_in_turn if scenario.caller.beside else run_jointly)(ranks_program, other, where)
        return ranks_program.seen
    part, place = conditions.part, -1
    try:
        ranks_program.construct()
        take_up(ranks_program, part)
        for place in range(part.begin, part.stop(scenario) + 1):
            if place in part.saves:
                ranks_program.seen["saved"] = checkpoint.write(checkpoint.ended(ranks_program.save()))
            if place < part.stop(scenario):
                run_event(ranks_program, place)
    except Exception as error:
        error.add_note(note(place, scenario.program, ranks_program.constructed_as))
        raise
    return ranks_program.seen


def take_up(rank: Rank, part: Part) -> None:
    """Skip the events that ranks of another world have run, and read the file with their checkpoint."""
    for event in rank.scenario.program[: part.begin]:
        ON_RANKS[type(event)].skip(rank, event)
    rank.file = checkpoint.read(part.file) if part.file else None
    if part.file:
        rank.seen.setdefault("initial", None)


def run_event(rank: Rank, place: int) -> None:
    """Run one event and make the observations after it."""
    rank.place, event = place, rank.scenario.program[place]
    on_ranks = ON_RANKS[type(event)]
    if rank.role in rank.scenario.gone(place):
        on_ranks.skip(rank, event)
    else:
        with rank.during(event):
            on_ranks.run(rank, event, place)
        rank.after(event)
        if on_ranks.is_shown(rank, event, place):
            rank.show(event)
    rank.ended(event)


def run_in_turn(this: Rank, other: Rank, where: str) -> None:
    """Run both programs. Each turn of the other comes right "before" or "after" one of this program's."""
    both = _both(this, other, where)
    running, place = this, -1
    try:
        for running in both:
            running.construct()
        for pair in itertools.zip_longest(*(turns(each.scenario) for each in both), fillvalue=()):
            for running, turn in zip(both, pair, strict=True):
                for place in turn:
                    run_event(running, place)
    except Exception as error:
        error.add_note(note(place, running.scenario.program, running.constructed_as))
        raise


def run_jointly(this: Rank, other: Rank, where: str) -> None:
    """Run both programs event by event. The other's event comes right "before" or "after" this one's.

    A micro-batch runs the forwards of both and then one backward of the sum of their losses.
    """
    first, second = both = _both(this, other, where)
    running, place = this, -1
    try:
        for running in both:
            running.construct()
        for place, event in enumerate(this.scenario.program):
            on_ranks = ON_RANKS[type(event)]
            ones, others = (on_ranks.losses(rank, event, place) for rank in (first, second))
            if ones is not None and others is not None:
                running = this
                with ones as (one,), others as (its,):
                    (one + its).backward()
            else:
                for running in both:
                    run_event(running, place)
    except Exception as error:
        error.add_note(note(place, running.scenario.program, running.constructed_as))
        raise


def _both(this: Rank, other: Rank, where: str) -> tuple[Rank, Rank]:
    """Both in the order of their turns. Collectives of the other are counted with this one's."""
    other.seen |= {"built": this.seen["built"], "looks": this.seen["looks"], "callers": this.seen["callers"]}
    return (this, other) if where == "after" else (other, this)


def describe(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Describe an implementation (see `description.describe`); ``payload`` is its name."""
    return description.describe(json.loads(payload))


def try_out(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The error (``wrong``) in calling an implementation (see `adapter.wrong_call`)."""
    asked = json.loads(payload)
    scenario = Scenario(1, (Parameter((1,)),), (Backward(((0,),)), Finish()))
    probe = Probe(scenario, initial_parameters(scenario, rank), rank)
    try:
        return {"wrong": adapter.wrong_call(asked["implementation"], probe, scenario, asked["accumulates"])}
    except Exception:  # an error of the implementation, which the laws judge
        return {"wrong": ""}
