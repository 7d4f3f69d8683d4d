"""How programs are run where that is not as usual: what ranks are told, and that no name is passed over."""

import json

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.conditions import AS_USUAL, Conditions
from lockstep.properties.implementations import look_up
from lockstep.properties.part import Part
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import Wasteful
from lockstep.worlds.contract import World

SCENARIO = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))


@pytest.mark.parametrize(
    ("conditions", "unusual"),
    [
        (AS_USUAL, set()),
        (Conditions(equal_from="first forward", asks_for_masters=False), {"equal_from", "asks_for_masters"}),
        (Conditions(part=Part(1, saves=(1, 2), looks=2)), {"part"}),
        (Conditions(equal_from="first forward", collects=True), {"equal_from", "collects"}),
    ],
)
def test_ranks_are_told_what_is_unusual_and_nothing_else(conditions: Conditions, unusual: set[str]) -> None:
    told = conditions.unusual()
    assert told.keys() == unusual
    assert Conditions.of(told) == conditions
    assert Conditions.of(json.loads(json.dumps(told))) == conditions


def test_a_condition_that_there_is_not_is_an_error_and_not_passed_over(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.naive:NaiveAccumulation"], sim)
    with pytest.raises(TypeError, match="droped"):
        Trial(implementation, sim).run(SCENARIO, droped=(0,))


def test_a_failure_knows_how_its_run_was_made(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.naive:NaiveAccumulation"], sim)
    run = Trial(implementation, sim).run(SCENARIO, collects=True, timeline=True)
    assert run.broken(Wasteful, "A headline.").choices == {"collects": True, "timeline": True}
