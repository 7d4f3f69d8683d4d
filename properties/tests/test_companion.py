"""A model that is trained beside another: whose turn it is, and that what each does is its own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.impls.naive import NaiveAccumulation
from lockstep.oracle.caller import Caller
from lockstep.oracle.events import Backward, Finish, Freeze, Step, ZeroGrad
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.companion import companion, partner, turns
from lockstep.properties.judging import judge
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import Crashes
from lockstep.worlds.contract import World

LOCAL, WHOLE = Backward(((0,), (0,)), False), Backward(((0,), (0,)))
ONE, BOTH = Parameter((1,)), Backward(((0, 1), (0, 1)))
SCENARIO = Scenario(2, (ONE,), (LOCAL, WHOLE, Finish(), Step()))


def test_a_backward_that_synchronizes_and_its_finish_are_one_turn() -> None:
    assert list(turns(SCENARIO)) == [(0,), (1, 2), (3,)]


def test_no_mean_of_the_companion_is_one_of_the_model() -> None:
    mine, its = interpret(SCENARIO).gradients[2][0], interpret(companion(SCENARIO)).gradients[5][0]
    assert isinstance(mine, np.ndarray)
    assert isinstance(its, np.ndarray)
    assert mine.item() > 0 > its.item()


def test_the_companion_is_a_window_ahead_with_another_learning_rate() -> None:
    its = companion(SCENARIO)
    assert its.program == (WHOLE, Finish(), ZeroGrad(), *SCENARIO.program)
    assert its.hyperparameters.learning_rate not in (None, SCENARIO.learning_rate)
    assert companion(Scenario(2, (Parameter((1,)),), (Step(),))).program == (Step(),)


def test_the_window_ahead_is_of_what_is_trained_then() -> None:
    frozen = Scenario(2, (ONE, replace(ONE, trainable=False)), (Freeze((1,), False), BOTH, Finish()))
    assert companion(frozen).program[0] == WHOLE
    nothing = Scenario(2, (replace(ONE, trainable=False),), (Freeze((0,), False), WHOLE, Finish()))
    assert companion(nothing).program == nothing.program


def test_both_send_what_each_sends_alone_turn_by_turn(sim: World) -> None:
    naive = trial_of("lockstep.impls.naive:NaiveAccumulation", sim)
    alone = [len(naive.run(each).since_construction[0]) for each in (SCENARIO, companion(SCENARIO))]
    assert alone == [1, 2]
    for where in ("before", "after"):
        assert len(naive.run(replace(SCENARIO, caller=Caller(beside=where))).since_construction[0]) == sum(alone)


def test_both_send_what_each_sends_alone_where_they_share_their_losses(sim: World) -> None:
    """Once, and the one that is asked about gets its own mean."""
    naive = trial_of("lockstep.impls.naive:NaiveAccumulation", sim)
    for where in ("before", "after"):
        run = naive.run(replace(SCENARIO, caller=Caller(joint=where)))
        assert len(run.since_construction[0]) == 2
        judge.values_equal(run, interpret(SCENARIO), "")


def test_models_that_share_their_losses_differ_in_sign_and_rate_alone() -> None:
    its = partner(SCENARIO)
    assert (its.program, its.signs) == (SCENARIO.program, "negative")
    assert its.hyperparameters.learning_rate not in (None, SCENARIO.learning_rate)


def test_an_error_of_the_other_model_is_told_where_it_came(sim: World) -> None:
    """And is no refusal of what had begun by then."""
    for where in ("before", "after"):
        fails = trial_of("lockstep.properties.tests.test_companion:FailsInItsThirdForward", sim)
        with pytest.raises(Crashes, match="in event 4, "):
            fails.run(replace(SCENARIO, caller=Caller(beside=where)))


def test_an_error_of_a_shared_loss_is_told_where_it_came(sim: World) -> None:
    program = (*SCENARIO.program, ZeroGrad(), WHOLE, Finish())
    for where in ("before", "after"):
        fails = trial_of("lockstep.properties.tests.test_companion:FailsInItsThirdForward", sim)
        with pytest.raises(Crashes, match="in event 5, "):
            fails.run(replace(SCENARIO, program=program, caller=Caller(joint=where)))


class FailsInItsThirdForward(NaiveAccumulation):
    """Its companion comes to a third forward, for it has a window more, while it has not."""

    forwards = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.forwards += 1
        if self.forwards == 3:
            raise RuntimeError("three")
        return super().forward(*inputs, **named)
