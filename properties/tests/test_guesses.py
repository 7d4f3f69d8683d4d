"""What a report guesses went wrong."""

from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, Clip, Finish, Raise, Unscale
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.model import LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.guess import guess
from lockstep.properties.diagnosing.shares import shares_of
from lockstep.properties.implementations import look_up
from lockstep.properties.judging import judge
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

# Rank 0 contributes 1 and rank 1 contributes 3: their mean, divided by two once more, is what rank 0 began with.
SCENARIO = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
GUESSES = {
    "lockstep.properties.tests.user_code:NeverSynchronizes": "rank 0's own gradient: never synchronized",
    "lockstep.impls.faults.mean:DividesTwice": "divided by the number of ranks twice",
    "lockstep.impls.faults.mean:NeverDivides": "the sum over ranks where the mean is due",
    "lockstep.impls.faults.mean:OnlyRankZeroHasTheMean": "rank 0's contribution is missing",
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_fits_on_every_rank(sim: World, name: str) -> None:
    (implementation,) = look_up([name], sim)
    trial = Trial(implementation, sim)
    with pytest.raises(SilentlyWrong) as broken:
        judge.values_equal(*trial.run_and_expect(SCENARIO), "Wrong.")
    assert guess(broken.value, interpret(SCENARIO)) == GUESSES[name]


def test_after_clipping_there_is_no_guess(sim: World) -> None:
    """Rank 0's own gradient is 1, to which any is clipped; and what must be is a rounding away from it."""
    (implementation,) = look_up(["lockstep.properties.tests.user_code:ClipsWithoutEpsilon"], sim)
    trial = Trial(implementation, sim)
    clipped = Scenario(2, SCENARIO.parameters, (*SCENARIO.program, Clip(1.0)))
    with pytest.raises(SilentlyWrong) as broken:
        judge.values_equal(*trial.run_and_expect(clipped), "Wrong.")
    assert guess(broken.value, interpret(clipped)) is None


def test_a_power_of_two_is_the_loss_scale_where_gradients_are_divided_by_it(sim: World) -> None:
    """On two ranks, gradients that are left scaled by 2 are the sum in place of the mean, too."""
    scaled = replace(SCENARIO, program=(*SCENARIO.program, Unscale(), Clip(1.0)), loss_scale=LossScale(2.0))
    (implementation,) = look_up(["lockstep.impls.faults.scaling:UnscalesWhenItClips"], sim)
    trial = Trial(implementation, sim)
    with pytest.raises(SilentlyWrong) as broken:
        judge.values_equal(*trial.run_and_expect(scaled), "Wrong.")
    assert guess(broken.value, interpret(scaled)) == "not divided by the loss scale"


def test_what_an_error_has_left_behind_is_nan_which_no_shares_add_up_to(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.faults.accumulation:LeavesInFlight"], sim)
    both = ((0, 1), (0, 1))
    program = (Raise("backward", synchronize=True), Backward(both, synchronize=False), Backward(both), Finish())
    scenario = Scenario(2, (Parameter((1,)), Parameter((1,))), program)
    trial = Trial(implementation, sim)
    with pytest.raises(SilentlyWrong) as broken:
        judge.values_equal(*trial.run_and_expect(scenario), "Wrong.")
    told = "the micro-batch that the caller's error has ended, all of NaN, is still in it"
    assert guess(broken.value, interpret(scenario)) == told
    assert broken.value.difference is not None
    assert shares_of(trial, broken.value, broken.value.difference) is None
