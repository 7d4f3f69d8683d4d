"""The interpreter: it runs a program on paper and tells what every rank must hold wherever the outside can look.

Values are exact wherever they can be. The interpreter works on integers, and checks as it goes that floating point
would not round either (`oracle.lattice`). A scenario for which that fails raises `Inexact` and proves nothing. Some
operations round for every choice of data, such as a step of Adam or clipping by an irrational norm. Their results are
intervals, and so is everything computed from these. The effect of an event is defined by the event itself
(`oracle.events`).
"""

from functools import lru_cache

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.events.backward import OVERFLOWS
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.fingerprint import contributions
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import UNUSED
from lockstep.oracle.state import Choices, start, told


def interpret(
    scenario: Scenario,
    averaging: str = AVERAGINGS[0],
    unused: str = UNUSED[0],
    implementations: str = "torch cpu",
    eager: bool = False,
    kept: str = "",
) -> Expectation:
    """The expectation of a scenario, for an implementation that averages in the given way.

    The arguments are those of `oracle.state.Choices`. Results are kept for later calls and must not be changed. Raises
    Inexact if an operation would round that other data would leave exact.
    """
    return _interpret(scenario, Choices(averaging, unused, implementations, eager, kept))


@lru_cache(maxsize=8)  # who asks whether a scenario is exact soon asks what it gives
def _interpret(scenario: Scenario, choices: Choices) -> Expectation:
    if scenario.differs is not None:
        raise Inexact(f"ranks have models that differ, of which nothing can come: {scenario.differs!r}")
    state = start(scenario, choices, lambda batch: contributions(scenario)[batch])
    expectation = Expectation(told(state, state.weights))
    otherwise = any(batch.overflow and batch.overflows != OVERFLOWS[0] for batch in scenario.microbatches)
    for place, event in enumerate(scenario.program):
        if state.spoiled and event.uses_gradients(state):
            raise Inexact(f"{event!r} uses gradients that were clipped after an overflow: drop them first")
        event.apply(state, place, expectation)
        open_now = otherwise and bool(scenario.overflowed(place))
        if event.shows == "gradients" and not (state.spoiled or open_now):
            expectation.gradients[place] = told(state, state.gradients, gradients=True)
        elif event.shows == "parameters":
            expectation.parameters[place] = told(state, state.weights)
    return expectation


def is_exact(scenario: Scenario, averaging: str = AVERAGINGS[0], unused: str = UNUSED[0]) -> bool:
    """True if nothing rounds, in any order of reduction, when the mean is taken in the given way."""
    try:
        return interpret(scenario, averaging, unused).exact
    except Inexact:
        return False
