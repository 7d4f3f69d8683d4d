"""A part of a program that begins elsewhere: what is skipped, what is loaded, and what a file promises."""

from lockstep.oracle.events import Backward, Finish, Freeze, SaveAndLoad, Step, ZeroGrad
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.model import Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import look_up
from lockstep.properties.part import Part, as_text
from lockstep.properties.test_checkpoints import during, moves, quiet_places
from lockstep.properties.trial import Trial

_STEP = (Backward(((0, 1),) * 4), Finish(), Step(), ZeroGrad())
_FROZEN = (Backward(((1,),) * 4), Finish(), Step())
SCENARIO = Scenario(
    4,
    (Parameter((3,)), Parameter((2, 2))),
    (*_STEP, Freeze((0,)), SaveAndLoad(), *_FROZEN),
    hyperparameters=Hyperparameters(momentum=0.5),
)


def test_a_state_can_be_handed_between_all_numbers_of_ranks_that_share_the_samples_alike(sim):
    (implementation,) = look_up(["lockstep.impls.zero1:Zero1"], sim)
    ways = [(one.world_size, place, other.world_size) for one, place, other in moves(SCENARIO, implementation.claims)]
    assert ways == [(one, 5, other) for one in (1, 2, 4) for other in (1, 2, 4) if one != other]


def test_the_second_part_of_a_run_needs_the_file_of_the_first_and_nothing_else(sim):
    (implementation,) = look_up(["lockstep.impls.zero1:Zero1"], sim)
    trial, expected = Trial(implementation, sim), interpret(SCENARIO)
    first = trial.run(SCENARIO, part=Part(end=5, saves=(5,)))
    assert set(first.observations[0]["parameters"]) == {2}
    second = trial.run(SCENARIO, part=Part(begin=5, file=as_text(first.observations[3]["saved"])))
    assert set(second.observations[0]["parameters"]) == {5, 8}
    for seen in second.observations:
        for place in (5, 8):
            for value, wanted in zip(seen["parameters"][place], expected.parameters[place], strict=True):
                assert value.tobytes() == wanted.tobytes()
        assert seen["states"][8][0]["momentum_buffer"].tobytes() == expected.states[2][0]["momentum_buffer"].tobytes()


def test_what_is_expected_of_a_part_is_what_is_expected_of_its_events():
    expected = interpret(SCENARIO)
    assert set(during(expected, 0, 5).parameters) == {2}
    assert set(during(expected, 5, 9).parameters) == {5, 8}
    assert during(expected, 0, 9) == expected


def test_nothing_is_saved_between_a_backward_that_synchronizes_and_its_finish():
    assert quiet_places(SCENARIO, Claims()) == [0, 2, 3, 4, 5, 6, 8, 9]


def test_nothing_is_saved_before_the_forward_that_makes_ranks_equal():
    assert quiet_places(SCENARIO, Claims(equal_from="first forward")) == [2, 3, 4, 5, 6, 8, 9]
