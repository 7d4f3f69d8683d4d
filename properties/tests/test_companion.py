"""A model that is trained beside another: whose turn it is, and that what each does is its own."""

import numpy as np

from oracle.interpreter import interpret
from oracle.program import Backward, Finish, Parameter, Scenario, Step
from properties.companion import companion, turns
from properties.tests.trials import trial_of
from worlds.contract import World

LOCAL, WHOLE = Backward(((0,), (0,)), False), Backward(((0,), (0,)))
SCENARIO = Scenario(2, (Parameter((1,)),), (LOCAL, WHOLE, Finish(), Step()))


def test_a_backward_that_synchronizes_and_its_finish_are_one_turn() -> None:
    assert list(turns(SCENARIO)) == [(0,), (1, 2), (3,)]


def test_no_mean_of_the_companion_is_one_of_the_model() -> None:
    mine, its = (interpret(each).gradients[2][0] for each in (SCENARIO, companion(SCENARIO)))
    assert isinstance(mine, np.ndarray)
    assert isinstance(its, np.ndarray)
    assert mine.item() > 0 > its.item()
    assert companion(companion(SCENARIO)) == SCENARIO


def test_both_send_what_each_sends_alone_turn_by_turn(sim: World) -> None:
    naive = trial_of("impls.naive:NaiveAccumulation", sim)
    alone = [call.operation for call in naive.run(SCENARIO).collectives[0]]
    for where in ("before", "after"):
        run = naive.run(SCENARIO, beside=where)
        assert [call.operation for call in run.collectives[0]] == [each for each in alone for _ in range(2)]
        assert [call.operation for call in run.since_construction[0]] == ["all_reduce", "all_reduce"]
