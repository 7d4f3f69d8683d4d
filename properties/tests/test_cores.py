"""The cores of failures: what has one cause has one core."""

from dataclasses import replace
from typing import Any

import pytest

from lockstep.oracle.events import Backward, Clip, Evaluate, Finish, Freeze, SaveAndLoad, Step, ZeroGrad
from lockstep.oracle.model import Group, Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import (
    test_accumulation,
    test_asynchrony,
    test_checkpoints,
    test_collectives,
    test_cost,
    test_invariance,
    test_mean,
    test_steps,
)
from lockstep.properties.diagnosing.core import MOST_LATE, core
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import look_up
from lockstep.properties.judging.judge import values_equal
from lockstep.properties.law import Law, law_of
from lockstep.properties.reports.failure import filed_failure
from lockstep.properties.searching.least import MOST_RUNS, least
from lockstep.properties.searching.search import Failure, search
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import Crashes, Hangs, SilentlyWrong
from lockstep.worlds.contract import Asynchrony, Job, Outcome, RankError, RankReport, World

MEAN = law_of(test_mean.test_gradients_equal_the_mean_over_ranks)
SAVED = law_of(test_checkpoints.test_saving_changes_nothing)
WINDOWS = law_of(test_accumulation.test_no_sync_accumulates_and_then_counts_once)
ZEROED = law_of(test_accumulation.test_zeroed_gradients_do_not_come_back)
RATES = law_of(test_steps.test_hyper_parameters_changed_between_steps_take_effect)
HOOKS = law_of(test_invariance.test_the_result_does_not_depend_on_the_order_in_which_hooks_fire)
TIMED = law_of(test_asynchrony.test_collectives_may_read_and_write_at_any_time)
WAITING = law_of(test_collectives.test_no_rank_waits_for_ever_where_ranks_use_different_parameters)
SILENT = law_of(test_cost.test_nothing_is_reduced_inside_no_sync)
SWAPPED = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (1, 0))), Finish()))


@pytest.mark.parametrize("law", [MEAN, SAVED, ZEROED, RATES])
def test_a_defect_has_one_core_whatever_the_law(sim: World, law: Law) -> None:
    (implementation,) = look_up(["lockstep.impls.hook_order_buckets:HookOrderBuckets"], sim)
    under_test = Trial(implementation, sim)
    failures = search(law, under_test, 100, seed_value=0).failures
    assert "SilentlyWrong" in {type(failure.broken).__name__ for failure in failures}
    for failure in failures:
        if failure.broken.verdict == "silently wrong":
            assert core(under_test, failure) == SWAPPED


def test_a_core_goes_wrong_as_the_whole_does(sim: World) -> None:
    """Less of the program goes wrong as well, but in another way, of another cause: gradients instead of the norm."""
    (implementation,) = look_up(["lockstep.properties.tests.user_code:TwoDefects"], sim)
    under_test = Trial(implementation, sim)
    window = (Backward(((0,), (0,))), Finish())
    scenario = Scenario(2, (Parameter((1,)),), (*window, ZeroGrad(), *window, Clip(1.0), ZeroGrad(), *window, Step()))
    for whole, least_of_it in (
        (scenario, (*window, Clip(1.0))),
        (replace(scenario, program=(*window, *window, Clip(1.0))), (*window, *window)),
    ):
        with pytest.raises(SilentlyWrong) as broken:
            values_equal(*under_test.run_and_expect(whole), "")
        found = core(under_test, Failure(whole, broken.value))
        assert found is not None
        assert list(map(type, found.program)) == list(map(type, least_of_it))


def test_what_is_wrong_in_other_ways_than_by_itself_has_no_core(sim: World) -> None:
    """Values are wrong, but what the law has seen is something else; or errors are others than under the law."""
    (implementation,) = look_up(["lockstep.properties.tests.user_code:TwoDefects"], sim)
    under_test = Trial(implementation, sim)
    window = (Backward(((0,), (0,))), Finish())
    scenario = Scenario(2, (Parameter((1,)),), (*window, *window))
    outcome = under_test.run(scenario).outcome
    for broken in (SilentlyWrong("In flight.", scenario, outcome), Crashes("Dropped.", scenario, outcome)):
        assert core(under_test, Failure(scenario, broken)) is None


def test_a_hang_on_real_processes_has_the_core_that_the_simulated_world_shows(sim: World, gloo: World) -> None:
    (implementation,) = look_up(["lockstep.impls.faults.unused:SkipsMissingGradients"], sim)
    under_test = Trial(implementation, sim)
    failures = search(WAITING, under_test, 100, seed_value=0).failures
    (hanging,) = [failure for failure in failures if failure.broken.verdict == "hangs"]
    scenario, real = hanging.broken.scenario, Trial(implementation, gloo, sim=lambda: sim)
    late = tuple(RankReport(None, RankError("timeout", "gave no answer", "")) for _ in range(scenario.world_size))
    there = replace(hanging, broken=Hangs("Late.", scenario, late), simulated=True)
    assert core(real, there) == core(under_test, hanging) is not None


def test_what_takes_the_law_to_be_seen_has_no_core(sim: World) -> None:
    """Right values at a higher price: by itself the program is right."""
    (implementation,) = look_up(["lockstep.impls.faults.accumulation:SendsInsideNoSync"], sim)
    under_test = Trial(implementation, sim)
    (failure, *_) = search(SILENT, under_test, 100, seed_value=0).failures
    assert failure.broken.verdict == "wasteful"
    assert core(under_test, failure) is None


def test_what_is_raised_in_the_constructor_has_one_cause_whatever_the_program(sim: World) -> None:
    (implementation,) = look_up(["lockstep.properties.tests.user_code:LooksForWhatIsNotThere"], sim)
    under_test = Trial(implementation, sim)
    one, other = ((Backward(((0,), (0,))), Finish()), (Backward(((0,), (0,))), Finish(), Step()))
    filed = []
    for law, program in ((MEAN, one), (RATES, other)):
        scenario = Scenario(2, (Parameter((len(program),)),), program)
        with pytest.raises(Crashes) as broken:
            values_equal(*under_test.run_and_expect(scenario), "")
        filed.append(filed_failure(law, under_test, diagnose(under_test, Failure(scenario, broken.value))))
    assert filed[0]["cause"] == filed[1]["cause"] == "IndexError: list index out of range"


def test_what_a_law_runs_otherwise_is_not_plain_where_it_need_not_be_the_reason(sim: World) -> None:
    """Of two laws with one cause, the plain one is told."""
    (implementation,) = look_up(["lockstep.impls.faults.mean:NeverDivides"], sim)
    under_test = Trial(implementation, sim)
    scenario = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
    filed, runs = [], list[tuple[Law, dict[str, Any]]]([(MEAN, {}), (TIMED, {"asynchrony": Asynchrony()})])
    for law, otherwise in runs:
        with pytest.raises(SilentlyWrong) as broken:
            values_equal(under_test.run(scenario, **otherwise), under_test.expected(scenario), "")
        filed.append(
            filed_failure(
                law,
                under_test,
                diagnose(under_test, Failure((scenario, Asynchrony()) if otherwise else scenario, broken.value)),
            )
        )
    assert filed[0]["cause"] == filed[1]["cause"]
    assert [each["plain"] for each in filed] == [True, False]


def test_a_core_leaves_out_whatever_a_failure_does_not_take() -> None:
    """All of it but one parameter of a dtype, which is used after another one that has been frozen and left out."""
    plain = Parameter((1,))
    window = (Backward(((1, 3, 0), (0, 3, 1), (1, 0, 3), (3, 1, 0))), Finish(), Step(), ZeroGrad())
    whole = Scenario(
        2,
        (plain, Parameter((2, 3), layout="transposed"), replace(plain, trainable=False), Parameter((3,), "float64")),
        (Freeze((2,)), *window, SaveAndLoad(), Evaluate(), *window),
        optimizer="Adam",
        bucket_cap=8,
        groups=(Group((1, 3), Hyperparameters(weight_decay=0.5)),),
        units=((1, 2), (3,)),
    )

    def fails(scenario: Scenario) -> bool:
        return any(parameter.dtype == "float64" for parameter in scenario.parameters) and bool(scenario.microbatches)

    assert least(whole, fails) == Scenario(1, (Parameter((1,), dtype="float64"),), (Backward(((0,),)), Finish()))
    assert least(whole, lambda scenario: False) == whole


def test_the_least_program_uses_what_is_trained_again_on_every_rank() -> None:
    """Or ranks that do not use it would seem to be a part of the cause."""
    again = (Freeze((0,), frozen=False), Backward(((), (0,))), Finish())
    whole = Scenario(2, (Parameter((1,), trainable=False),), again)

    def fails(scenario: Scenario) -> bool:
        used = any(order for batch in scenario.microbatches for order in batch.orders)
        again = scenario.has(Freeze) and not all(each.trainable for each in scenario.parameters)
        return scenario.world_size == 2 and again and used

    (orders,) = (batch.orders for batch in least(whole, fails).microbatches)
    assert orders == ((0,), (0,))


def test_the_search_for_a_core_ends_after_so_many_runs_whatever_they_take() -> None:
    window = (Backward(((1, 3, 0, 2), (0, 3, 1), (1, 0, 3), (3, 1, 0))), Finish(), Clip(1.0), Step(), ZeroGrad())
    whole = Scenario(4, (Parameter((2, 3), "float64"),) * 4, window * 4, bucket_cap=8, units=((1, 2), (3,)))
    runs = iter(range(1000))
    assert least(whole, lambda scenario: next(runs) < 0) == whole
    assert next(runs) == MOST_RUNS


class Counted:
    """The simulated world, and how many of its examples a clock has ended."""

    name, device, limit = "sim", "cpu", 60.0
    ranks: int | None = None

    def __init__(self, sim: World) -> None:
        self._sim, self.late = sim, 0

    def run(self, job: Job) -> Outcome:
        outcome = self._sim.run(job)
        self.late += any(report.error is not None and report.error.kind == "timeout" for report in outcome)
        return outcome

    def close(self) -> None:
        self._sim.close()


def test_a_core_is_not_looked_for_where_smaller_programs_take_the_clock_again_and_again(sim: World) -> None:
    """What is found by then is the core, on any machine."""
    (implementation,) = look_up(["lockstep.properties.tests.user_code:SumsOrHangs"], sim)
    world = Counted(sim)
    under_test = Trial(implementation, world)
    orders = ((0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0))
    scenario = Scenario(4, (Parameter((1,)),) * 3, (Backward(orders), Finish(), ZeroGrad()))
    with pytest.raises(SilentlyWrong) as broken:
        values_equal(*under_test.run_and_expect(scenario), "")
    found = core(under_test, Failure(scenario, broken.value))
    assert found is not None
    assert found.world_size == 4
    assert world.late == MOST_LATE
