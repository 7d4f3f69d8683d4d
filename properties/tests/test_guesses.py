"""What a report guesses went wrong."""

import pytest

from oracle.interpreter import interpret
from oracle.program import Backward, Clip, Finish, Parameter, Scenario
from properties.implementations import look_up
from properties.judging import judge
from properties.reports.guess import guess
from properties.trial import Trial
from properties.verdict import SilentlyWrong
from worlds.contract import World

# Rank 0 contributes 1 and rank 1 contributes 3: their mean, divided by two once more, is what rank 0 began with.
SCENARIO = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
GUESSES = {
    "properties.tests.user_code:NeverSynchronizes": "rank 0's own gradient: never synchronized",
    "impls.faults.mean:DividesTwice": "divided by the number of ranks twice",
    "impls.faults.mean:NeverDivides": "the sum over ranks where the mean is due",
    "impls.faults.mean:OnlyRankZeroHasTheMean": "rank 0's contribution is missing",
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_fits_on_every_rank(sim: World, name: str) -> None:
    (implementation,) = look_up([name], sim)
    with pytest.raises(SilentlyWrong) as broken:
        judge.by_the_oracle(Trial(implementation, sim), SCENARIO, "Wrong.")
    assert guess(broken.value, interpret(SCENARIO)) == GUESSES[name]


def test_after_clipping_there_is_no_guess(sim: World) -> None:
    """Rank 0's own gradient is 1, to which any is clipped; and what must be is a rounding away from it."""
    (implementation,) = look_up(["properties.tests.user_code:ClipsWithoutEpsilon"], sim)
    clipped = Scenario(2, SCENARIO.parameters, (*SCENARIO.program, Clip(1.0)))
    with pytest.raises(SilentlyWrong) as broken:
        judge.by_the_oracle(Trial(implementation, sim), clipped, "Wrong.")
    assert guess(broken.value, interpret(clipped)) is None
