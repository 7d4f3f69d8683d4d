"""The moments at which a caller may do something of its own with the model."""

from collections.abc import Sequence
from functools import partial

from hypothesis import strategies as st

from lockstep.oracle.events import Evaluate, Event
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.events.evaluate import evaluation


def moments(scenario: Scenario, claims: Claims) -> list[int]:
    """The events before which it may be evaluated: not inside `no_sync`, nor where a synchronization is to be finished,
    nor before the first forward where that makes ranks equal.
    """
    found = []
    for place, event in enumerate(scenario.program):
        unequal = place == 0 and claims.equal_from != EQUAL_FROM[0]
        inside = scenario.standings[place].unfinished or scenario.stays_in_no_sync(place - 1)
        if not (unequal or inside or type(event) is Evaluate):
            found.append(place)
    return found


def places_of(scenario: Scenario, kind: type[Event]) -> list[int]:
    """The places of all events of a kind."""
    return [place for place, event in enumerate(scenario.program) if isinstance(event, kind)]


def one_or_all(places: Sequence[int]) -> list[tuple[int, ...]]:
    """Each by itself, and all of them."""
    return [*((place,) for place in places), *([tuple(places)] if len(places) > 1 else [])]


def evaluations(claims: Claims) -> st.SearchStrategy[Evaluate]:
    """An evaluation of each kind that is claimed."""
    return st.builds(partial(evaluation, claims), st.booleans() if claims.infers else st.just(False), st.integers(0, 3))
