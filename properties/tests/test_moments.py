"""What is whole while forward and backward run, also of models whose root has parameters beside those of its units."""

from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, CopyGradients, Event, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import test_sharding
from lockstep.properties.law import law_of
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

LAW = law_of(test_sharding.test_only_what_is_in_use_is_whole)
A, B, C, D = (Parameter((count,)) for count in (3, 4, 5, 7))
ROOT_BETWEEN = ((3, 1, 0, 2),) * 2
ROOT_LAST = ((3, 2, 1, 0),) * 2


def program(orders: tuple[tuple[int, ...], ...], local: bool = False) -> tuple[Event, ...]:
    """Two steps."""
    window: tuple[Event, ...] = (*[Backward(orders, False)] * local, Backward(orders), Finish(), Step(), ZeroGrad())
    return window * 2


COPIED = (program(ROOT_LAST, local=True)[0], CopyGradients(), *program(ROOT_LAST))
OF_UNITS = {
    "the root beside two units": Scenario(2, (A, B, C, D), program(ROOT_LAST), units=((1, 2), (3,))),
    "the root between two units": Scenario(2, (A, B, C, D), program(ROOT_BETWEEN), units=((1,), (2, 3))),
    "inside no_sync": Scenario(2, (A, B, C, D), program(ROOT_LAST, local=True), units=((1, 2), (3,))),
    "three ranks, one unit called twice": Scenario(3, (A, B, C, D), program(((3, 2, 1, 0),) * 3), units=((1, 3), (2,))),
    "a frozen parameter in a unit": Scenario(
        2, (A, B, replace(C, trainable=False), D), program(((3, 1, 0),) * 2), units=((1, 2), (3,))
    ),
    "gradients that the caller copies": Scenario(2, (A, B, C, D), COPIED, units=((1, 2), (3,))),
    "a tensor of two units": Scenario(2, (A, B, C, replace(B, tied=1)), program(ROOT_LAST), units=((1, 2), (3,))),
}
OF_BUCKETS = {
    "one bucket": Scenario(2, (A, B, C, D), program(ROOT_LAST)),
    "several": Scenario(2, (A, B, C, D), program(ROOT_LAST), bucket_cap=20),
    "several, filled out of order": Scenario(2, (A, B, C, D), program(ROOT_BETWEEN), bucket_cap=20),
    "inside no_sync": Scenario(3, (A, B, C, D), program(((3, 2, 1, 0),) * 3, local=True), bucket_cap=28),
}


@pytest.mark.parametrize("what", OF_UNITS)
def test_stage_three_holds_what_is_in_use(sim: World, what: str) -> None:
    LAW.check(trial := trial_of("lockstep.impls.zero3:Zero3", sim), OF_UNITS[what])
    assert trial.witnessed["something was whole for a time"]


@pytest.mark.parametrize("what", OF_BUCKETS)
def test_stage_two_holds_the_gradients_of_a_bucket_until_it_is_reduced(sim: World, what: str) -> None:
    LAW.check(trial := trial_of("lockstep.impls.zero2:Zero2", sim), OF_BUCKETS[what])
    assert trial.witnessed["something was whole for a time"]
