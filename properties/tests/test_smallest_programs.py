"""The smallest programs of kinds that were once not drawn: a fault goes wrong in each, and a right twin does not."""

from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, Finish, Replace, Step, ZeroGrad
from lockstep.oracle.model import Buffer, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.tests.scripts import lines
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
    "a rank lacks a mean that its optimizer is to step": (
        "test_a_mean_that_some_ranks_lack_is_stepped_like_any_other",
        "faults.optimizers:OwnersLoseWhatTheyLack",
        "twins.optimizers:FetchesMissingGradients",
        Scenario(2, TWO, (Backward(((0, 1), (0,))), Finish(), Step())),
    ),
    "a backward steps, after a micro-batch inside no_sync": (
        "test_a_backward_that_steps_uses_the_mean_of_all_micro_batches_once",
        "faults.in_backward:StepsInEachMicroBatch",
        "twins.training:StepsInBackward",
        Scenario(2, ONE, (replace(BATCH, synchronize=False), BATCH, Finish(), Step(), ZeroGrad())),
    ),
    "a parameter gets a name that the model did not have": (
        "test_parameters_with_names_that_the_model_did_not_have_are_synchronized",
        "faults.renamed:LeavesAdaptersLocal",
        "twins.binding:FollowsNewNames",
        Scenario(2, ONE, (Replace((0,), renamed=True), BATCH, Finish())),
    ),
    "forward assigns a buffer anew": (
        "test_buffers_are_those_of_rank_0_when_it_is_claimed",
        "faults.models:BuffersItFoundAtFirst",
        "frameworks.torch_ddp:TorchDDP",
        Scenario(2, ONE, (BATCH, Finish()) * 2, buffers=(Buffer((1,), reassigned=True),), broadcast_buffers=True),
    ),
}


# Those that scripts write in lines of their own, with the conditions under which ranks run them.
SCRIPTS: dict[str, dict[str, bool]] = {
    "a rank lacks a mean that its optimizer is to step": {"withheld": True},
    "a backward steps, after a micro-batch inside no_sync": {},
    "a parameter gets a name that the model did not have": {},
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_finds_the_fault_wrong_and_the_right_twin_right(sim: World, kind: str) -> None:
    _, wrong, right, scenario = PROGRAMS[kind]
    for name in (wrong, right):
        told = lines(sim, f"lockstep.impls.{name}", scenario, **SCRIPTS[kind])
        assert told
        assert any("WRONG" in line for line in told) == (name == wrong), told


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_fault_goes_wrong_in_the_smallest_program_and_a_right_twin_does_not(sim: World, kind: str) -> None:
    law, wrong, right, scenario = PROGRAMS[kind]
    every_law()[law].check(trial_of(f"lockstep.impls.{right}", sim), scenario)
    with pytest.raises(LawBroken):
        every_law()[law].check(trial_of(f"lockstep.impls.{wrong}", sim), scenario)
