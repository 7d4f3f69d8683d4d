"""What a report says is what differs, and all that there is."""

from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.model import Group, Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import test_mean as mean
from lockstep.properties.implementations import look_up
from lockstep.properties.law import law_of
from lockstep.properties.naming import model_words
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

ONE = Parameter((1,))
STEPPED = Scenario(2, (ONE,), (Backward(((0,), (0,))), Finish(), Step()))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "lockstep.impls.faults.start:NoBroadcast",
            "Parameters are not what they must be. On rank 1, after construction, a[0] is",
        ),
        (
            "lockstep.impls.faults.mean:NeverDivides",
            "Gradients are not the mean over ranks. On rank 0, after event 1, a.grad[0]",
        ),
    ],
)
def test_a_law_on_gradients_says_where_parameters_differ(sim: World, name: str, said: str) -> None:
    (implementation,) = look_up([name], sim)
    with pytest.raises(SilentlyWrong) as broken:
        law_of(mean.test_gradients_equal_the_mean_over_ranks).check(Trial(implementation, sim), STEPPED)
    assert broken.value.headline.startswith(said)


def test_a_group_without_parameters_is_told() -> None:
    mine = Group((0,), Hyperparameters(learning_rate=0.25))
    assert "; group 0 empty; group of a with learning rate 0.25" in model_words(Scenario(2, (ONE,), (), groups=(mine,)))
    assert "empty" not in model_words(Scenario(2, (ONE, ONE), (), groups=(mine,)))
    assert "empty" not in model_words(STEPPED)


def test_signs_are_told_where_they_are_not_all_positive() -> None:
    assert "sign" not in model_words(STEPPED)
    assert model_words(replace(STEPPED, signs="mixed")).endswith("; contributions of mixed sign")


def test_a_mode_is_told_where_it_is_not_that_of_training() -> None:
    assert "mode" not in model_words(STEPPED)
    assert "; trained in evaluation mode" in model_words(replace(STEPPED, mode="eval"))


def test_ranks_that_take_no_part_are_told() -> None:
    assert "no part" not in model_words(STEPPED)
    told = "2 ranks, a group: ranks 1 and 2 of a world of 3, whose rank 0 takes no part (ranks here are the group's); "
    assert model_words(replace(STEPPED, outsiders=1)).startswith(told)
    alone = Scenario(1, (ONE,), (), outsiders=2)
    told = "1 rank, a group: rank 1 of a world of 3, whose ranks 0 and 2 take no part (ranks here are the group's); "
    assert model_words(alone).startswith(told)
    assert "ranks 1 and 3 of a world of 4, whose ranks 0 and 2 take" in model_words(replace(STEPPED, outsiders=2))
    assert "ranks 1, 3 and 4 of" in model_words(Scenario(3, (ONE,), (), outsiders=2))
    assert "ranks 1 to 3 of" in model_words(Scenario(3, (ONE,), (), outsiders=1))
