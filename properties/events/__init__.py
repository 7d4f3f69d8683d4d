"""The facets of events: each kind has a module of the event's name. It says how a training loop has it, what
must be claimed for it, its words, its lines in a script, and what is simpler.

    facet      the base of them all: what each has to say
    loop       the training loop while it is drawn, and the kinds of its phases
    caller     what a caller brings to the loop
    options    the options that are drawn for a scenario
    claimed    what must be claimed for something to be drawn
"""

from collections.abc import Iterator
from typing import Any

from lockstep.oracle.events import EVENTS, Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.event_modules import of_event
from lockstep.properties.events.facet import Facet
from lockstep.properties.events.loop import Kind

# In which order seeds find the kinds that are drawn seldom. One that is not named here comes last.
_FIRST = (
    *("clip", "set hyperparameters", "move", "drop loss", "unscale", "overflow", "save and load", "save", "load"),
    *("evaluate", "infer", "nested", "together", "drop window", "freeze", "raise", "replace", "join", "end join"),
)


def facet_in(package: str, event: type[Event]) -> Facet[Any]:
    """The FACET of a package's module of the event's name. ImportError, in one line, where there is none, or where
    nothing draws the event and no reason is given.
    """
    facet: Facet[Any] = of_event(package, event, "FACET", Facet)
    if not (facet.kinds() or facet.undrawn):
        module = f"{package}.{event.module()}"
        raise ImportError(f"{module} names no kind of phase that draws {event.__name__}, and no reason why none does")
    return facet


FACETS: dict[type[Event], Facet[Any]] = {event: facet_in(__name__, event) for event in EVENTS.values()}
KINDS: dict[str, Kind] = {kind.name: kind for facet in FACETS.values() for kind in facet.kinds()}
_USUAL = [kind for kind in KINDS.values() if kind.often > 1]
_SPECIAL = sorted(
    (kind for kind in KINDS.values() if kind.often == 1 and not kind.apart),
    key=lambda kind: _FIRST.index(kind.name) if kind.name in _FIRST else len(_FIRST),
)


def facet_of(event: Event) -> Facet[Any]:
    """The facet of its kind: how it is drawn, told and written into a script."""
    return FACETS[type(event)]


def general_draw(claims: Claims) -> tuple[Kind, ...]:
    """The kinds of phases that are claimed, usual ones first and more often."""
    rounds = range(max(kind.often for kind in _USUAL))
    usual = [kind for turn in rounds for kind in _USUAL if kind.often > turn]
    return (*usual, *(kind for kind in _SPECIAL if kind.claimed(claims)))


def event_words(scenario: Scenario, place: int, expected: Expectation | None = None) -> list[str]:
    """An event in words, a line for each rank where ranks differ. ``expected``: what must come of it, where known."""
    event = scenario.program[place]
    return facet_of(event).words(scenario, place, event, expected)


def simpler(program: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
    """Programs in which one event is simpler."""
    for place, event in enumerate(program):
        for plain in facet_of(event).simpler(event):
            yield (*program[:place], plain, *program[place + 1 :])
