"""The events before which a caller may do something of its own with the model."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.events import Evaluate
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.evaluate import evaluation


def altered(scenario: Scenario, places: Sequence[int], **changes: Any) -> Scenario:
    """The scenario with changed fields in the events at these places. Raises ValueError if the change is invalid."""
    program = (replace(each, **changes) if place in places else each for place, each in enumerate(scenario.program))
    return replace(scenario, program=tuple(program))


def one_or_all(places: Sequence[int]) -> list[tuple[int, ...]]:
    """Each place by itself, and all of them together."""
    return [*((place,) for place in places), *([tuple(places)] if len(places) > 1 else [])]


def evaluations(claims: Claims) -> st.SearchStrategy[Evaluate]:
    """An evaluation of each kind that is claimed."""
    return st.builds(partial(evaluation, claims), st.booleans() if claims.infers else st.just(False), st.integers(0, 3))
