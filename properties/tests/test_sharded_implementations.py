"""ZeRO's stages do what the interpreter says, in programs of every event."""

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings

from oracle.interpreter import interpret
from oracle.lattice import Inexact
from oracle.program import Raise, Scenario
from properties.strategies.scenarios import adds_up_rounded_means
from properties.tests.drawn_programs import programs
from properties.tests.test_oracle_against_torch_programs import SIXTEEN, disagreements, run_on
from worlds.contract import World

ZERO = ("impls.zero1:Zero1", "impls.zero2:Zero2", "impls.zero3:Zero3")


def run_one_by_one(scenario: Scenario) -> bool:
    """Whether a rank has a micro-batch of its own, for which ZeRO-3 has nobody to gather from."""
    return scenario.world_size > 1 and any(
        isinstance(event, Raise) and event.rank is not None for event in scenario.program
    )


@pytest.mark.parametrize("implementation", ZERO)
@given(scenario=programs(3, ("float32", "float64", *SIXTEEN)))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stage_does_what_the_interpreter_says(sim: World, implementation: str, scenario: Scenario) -> None:
    assume(not (implementation == ZERO[2] and run_one_by_one(scenario)))
    try:
        expected = interpret(scenario, "sum then divide", "zero")
    except Inexact:
        reject()
    assume(not adds_up_rounded_means(scenario, expected))
    for rank, seen in enumerate(run_on(sim, scenario, implementation)):
        assert disagreements(seen, expected, rank) == []
