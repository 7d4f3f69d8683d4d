"""The smallest programs of kinds that were once not drawn: a fault goes wrong in each, and a right twin does not."""

import pytest

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.model import Buffer, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import World

ONE, TWO = (Parameter((1,)),), (Parameter((1,)), Parameter((1,)))
BATCH, IN_TURN = Backward(((0,), (0,))), Backward(((0, 1), (0, 1)))
# Law, wrong, right, program.
PROGRAMS = {
    "units called against the order of registration, and nobody looks": (
        "test_what_nobody_looks_at_is_trained_all_the_same",
        "faults.sharding:OldValuesOutOfTurn",
        "zero3:Zero3",
        Scenario(2, TWO, (IN_TURN, Finish(), Step()) * 2, probe="quadratic", units=((0,), (1,))),
    ),
    "the synchronization is ended inside no_sync": (
        "test_no_sync_accumulates_and_then_counts_once",
        "faults.accumulation:AveragesWhereAnInnerNoSyncHasEnded",
        "naive:NaiveAccumulation",
        Scenario(2, ONE, (Backward(((0,), (0,)), False, nested=True, ends=True), BATCH, Finish())),
    ),
    "forward assigns a buffer anew": (
        "test_buffers_are_those_of_rank_0_when_it_is_claimed",
        "faults.models:BuffersItFoundAtFirst",
        "frameworks.torch_ddp:TorchDDP",
        Scenario(2, ONE, (BATCH, Finish()) * 2, buffers=(Buffer((1,), reassigned=True),), broadcast_buffers=True),
    ),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_fault_goes_wrong_in_the_smallest_program_and_a_right_twin_does_not(sim: World, kind: str) -> None:
    law, wrong, right, scenario = PROGRAMS[kind]
    every_law()[law].check(trial_of(f"lockstep.impls.{right}", sim), scenario)
    with pytest.raises(LawBroken):
        every_law()[law].check(trial_of(f"lockstep.impls.{wrong}", sim), scenario)
