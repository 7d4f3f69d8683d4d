"""The facets of events. Each kind of event has a module of its name.

The module says how a training loop contains the event, the claims that it needs, its words, its lines in a script, and
simpler forms of it.

    facet      the base class of all facets
    loop       the training loop while it is drawn, and the kinds of its phases
    caller     the hyper-parameters of the caller
    options    the options that are drawn for a scenario
    claimed    conditions on claims
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

# The order of the kinds that are rarely drawn, on which the meaning of a seed depends. Kinds that are not listed come
# last.
_FIRST = (
    *("clip", "set hyperparameters", "move", "drop loss", "unscale", "overflow", "save and load", "save", "load"),
    *("evaluate", "infer", "nested", "together", "drop window", "freeze", "raise", "replace", "join", "end join"),
)


def facet_in(package: str, event: type[Event]) -> Facet[Any]:
    """The FACET in a package's module of the event's name.

    Raises ImportError with a message of one line if there is none, or if nothing draws the event and no reason is
    given.
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
    """The facet of an event: how it is drawn, described and written into a script."""
    return FACETS[type(event)]


def general_draw(claims: Claims) -> tuple[Kind, ...]:
    """The claimed kinds of phases. Usual ones come first and more often."""
    rounds = range(max(kind.often for kind in _USUAL))
    usual = [kind for turn in rounds for kind in _USUAL if kind.often > turn]
    return (*usual, *(kind for kind in _SPECIAL if kind.claimed(claims)))


def event_words(scenario: Scenario, place: int, expected: Expectation | None = None) -> list[str]:
    """An event in words, with a line for each rank if ranks differ. ``expected``: its results, if known."""
    event = scenario.program[place]
    return facet_of(event).words(scenario, place, event, expected)


def simpler(program: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
    """The programs with one event replaced by a simpler one."""
    for place, event in enumerate(program):
        for plain in facet_of(event).simpler(event):
            yield (*program[:place], plain, *program[place + 1 :])
