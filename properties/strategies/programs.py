"""Write a program from drawn phases, with events in any order that a training loop could have."""

from collections.abc import Sequence

from lockstep.oracle.events import Event, Finish, Step
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.events import FACETS
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.end_join import end_join
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP


def written(loop: Loop, phases: Sequence[Phase]) -> tuple[Event, ...]:
    """The program of these phases. Events are added at the end so that the effect of each event can be observed."""
    for phase in phases:
        _add(loop, phase)
    end_join(loop)
    last = {type(event): place for place, event in enumerate(loop.events)}

    def to_be_seen(by: Kind) -> int:
        return max((place for event, place in last.items() if FACETS[event].shown_by is by), default=-1)

    if last.get(Finish, -1) <= to_be_seen(SYNCHRONIZE):
        loop.backward(Phase(SYNCHRONIZE))
    if last.get(Step, -1) < to_be_seen(STEP):
        _add(loop, Phase(STEP))
    return tuple(loop.events)


def _add(loop: Loop, phase: Phase) -> None:
    """Add the events of a phase and those that they require, if the phase is possible here."""
    kind = phase.kind
    if not kind.while_joined:
        end_join(loop)
    if len(loop.events) == loop.built_at and loop.claims.equal_from != EQUAL_FROM[0] and not kind.forward:
        loop.backward(phase)
    if kind.may_be_drawn(loop.claims):
        kind.write(loop, phase)
