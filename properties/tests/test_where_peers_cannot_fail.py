"""Tests of other projects that cannot fail, or fail for the wrong reason: what they let through dies here by a law.

A row: the peer's test, a mutant that passes it, the check in own words, and the laws that find the mutant. No law draws
complex numbers: what tests of those let through dies on real ones.
"""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from lockstep.oracle import enclosures
from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.intervals import Interval
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import test_accumulation, test_mean, test_replicas, test_steps
from lockstep.properties.implementations import CORRECT
from lockstep.properties.law import Law, law_of
from lockstep.properties.tests.peers_checks import CHECKS
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import Job, World

LAWS: dict[str, Law] = {
    law.name: law
    for law in map(
        law_of,
        (
            test_mean.test_gradients_equal_the_mean_over_ranks,
            test_accumulation.test_no_sync_accumulates_and_then_counts_once,
            test_replicas.test_replicas_are_bitwise_equal_after_construction_and_after_every_step,
            test_steps.test_every_step_leaves_the_parameters_and_state_of_one_process,
        ),
    )
}
MEAN, ACCUMULATION, REPLICAS, STEPS = LAWS
_BATCH = Backward(((0,), (0,)))
ONE_STEP = Scenario(2, (Parameter((3,)),), (_BATCH, Finish(), Step()))
ACCUMULATED = Scenario(2, (Parameter((3,)),), (Backward(((0,), (0,)), synchronize=False), _BATCH, Finish()))


@dataclass(frozen=True)
class Row:
    """A test that lets a mutant through, and the law that does not."""

    peer: str
    mutant: str
    check: str
    law: str = MEAN
    scenario: Scenario = ONE_STEP
    ranks: int = 2


ROWS = (
    Row("PyTorch test_different_graph_across_ranks", "NeverReduces", "parameters_without_any_step"),
    Row("PyTorch test_skip_all_reduce_unused_parameters", "NeverReduces", "parameters_without_any_step", REPLICAS),
    Row("PyTorch test_static_graph_multi_forward", "NeverReduces", "one_batch_for_all_ranks"),
    Row("PyTorch nccl test_ddp_complex_params_and_grads", "NeverReduces", "one_complex_batch_for_all_ranks"),
    Row("PyTorch nccl test_ddp_mixed_real_and_complex_params", "NeverReduces", "one_complex_batch_for_all_ranks"),
    Row("DeepSpeed TestGradientAllreduceOp, mean", "NeverReduces", "one_batch_for_all_ranks"),
    Row("Megatron-LM test_fully_shard_sgd_losses_match_baseline", "NeverReduces", "one_batch_for_all_ranks", REPLICAS),
    Row("Megatron-LM test_grad_sync", "ShiftsByOne", "one_element_of_ones"),
    Row("PyTorch test_multiple_outputs_multiple_backward", "Negates", "it_does_not_raise"),
    Row("PyTorch test_failure_recovery", "Negates", "another_wrapper_does_not_raise"),
    Row("PyTorch test_ddp_complex_params", "Negates", "complex_parameters_do_not_raise"),
    Row("PyTorch test_ddp_shared_grad_acc_unused_params", "Zeroes", "unused_names_of_one_tensor_do_not_raise"),
    Row("PyTorch test_ddp_zero_output_features", "NeverReduces", "it_is_constructed"),
    Row("PyTorch test_ddp_sink_noclone", "Negates", "nothing_is_cloned"),
    Row("PyTorch test_ddp_update_process_group_grad_undefined", "Zeroes", "again_after_an_error"),
    Row("fairscale test_fwd_fwd_bwd_bwd", "Zeroes", "it_does_not_raise"),
    Row("DeepSpeed TestZeroUnbalancedGradients", "Negates", "it_does_not_raise", ranks=1),
    Row("DeepSpeed test_no_sync_ctxt", "KeepsTheLastMicrobatch", "two_runs_under_no_sync", ACCUMULATION, ACCUMULATED),
    Row("CS336 only rank 0 against the baseline", "OnlyRankZero", "rank_zero_against_the_baseline"),
    Row("CS336 only rank 0 against the baseline", "OnlyRankZero", "rank_zero_against_the_baseline", REPLICAS),
    Row("CS336 ranks compared once, at construction", "NeverReduces", "they_begin_alike", REPLICAS),
    Row("PyTorch ZeRO test_lr_scheduler", "Negates", "gradients_cleared_before_the_step"),
    Row("PyTorch FSDP2 _test_train_parity_single_group", "Sums", "losses_under_adam"),
    Row("PyTorch FSDP2 _test_train_parity_single_group, 8 ranks", "Sums", "losses_under_adam", ranks=8),
    Row("PyTorch FSDP2 _test_train_parity_single_group", "Halves", "losses_under_adam"),
    Row("PyTorch FSDP2 _test_train_parity_single_group", "TimesAHundred", "losses_under_adam"),
    Row("PyTorch FSDP2 _test_train_parity_single_group, 8 ranks", "Halves", "losses_under_adam", ranks=8),
    Row("PyTorch FSDP2 _test_train_parity_single_group, 8 ranks", "TimesAHundred", "losses_under_adam", ranks=8),
    Row("PyTorch ZeRO test_local_optimizer_parity, Adam", "Sums", "parameters_under_adam"),
    Row("PyTorch ZeRO test_local_optimizer_parity, AdamW", "Sums", "parameters_under_adamw"),
    Row("fairscale test_ddp_parity", "NeverReduces", "parameters_within_ten_steps"),
    Row("DeepSpeed compare_loss", "NeverReduces", "losses_within_a_half"),
    Row("DeepSpeed compare_loss", "Sums", "losses_within_a_half"),
    Row("DeepSpeed compare_loss", "NeverSteps", "losses_within_a_half", STEPS),
    Row("DeepSpeed compare_loss", "Negates", "losses_within_a_half"),
    Row("DeepSpeed compare_loss", "Zeroes", "losses_within_a_half"),
    Row("DeepSpeed compare_loss", "RandomGradient", "losses_within_a_half"),
)


def passes(world: World, implementation: str, check: str, ranks: int) -> bool:
    payload = json.dumps({"implementation": implementation, "check": check})
    outcome = world.run(Job("lockstep.properties.tests.peers_checks:run_check", payload, ranks))
    assert [report.error for report in outcome] == [None] * ranks
    return all(report.result["passes"] for report in outcome if report.result is not None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.peer}: {row.mutant}, {row.law}")
def test_what_survives_a_peers_kind_of_check_is_killed_by_a_law(sim: World, row: Row) -> None:
    mutant = f"lockstep.impls.faults.peers:{row.mutant}"
    assert passes(sim, mutant, row.check, row.ranks)
    with pytest.raises(SilentlyWrong):
        LAWS[row.law].check(trial_of(mutant, sim), row.scenario)


@pytest.mark.parametrize("check", CHECKS)
def test_a_correct_implementation_passes_each_of_these_checks(sim: World, check: str) -> None:
    assert passes(sim, "lockstep.impls.naive:NaiveAccumulation", check, 2)


def test_a_correct_implementation_with_an_optimizer_of_its_own_passes_the_losses_within_a_half(sim: World) -> None:
    assert passes(sim, "lockstep.impls.zero1:Zero1", "losses_within_a_half", 2)


def test_losses_compared_under_sgd_would_have_shown_a_wrong_scale(sim: World) -> None:
    """Our own gradients under the laws are looked at directly, so no optimizer can hide their scale."""
    for mutant in ("Sums", "Halves", "TimesAHundred"):
        with pytest.raises(SilentlyWrong) as broken:
            LAWS[MEAN].check(trial_of(f"lockstep.impls.faults.peers:{mutant}", sim), ONE_STEP)
        assert broken.value.difference is not None
        assert broken.value.difference.quantity == "gradient"


@pytest.mark.parametrize("seed", range(20))
def test_bits_of_the_whole_batch_against_the_mean_of_halves_accuse_an_ideal_implementation(seed: int) -> None:
    """CS336 test_fsdp_correctness compares a gradient over 20 rows with the mean of two over 10, bit for bit.

    Here in plain float32 additions, row by row, and the mean taken without any rounding of its own (halving is exact):
    both orders are right, and their bits differ in some element. The interval over all orders holds both.
    """
    numbers = np.random.default_rng(seed).standard_normal((20, 50)).astype(np.float32)
    whole = _sum(numbers) / np.float32(20)
    halves = [_sum(part) / np.float32(10) for part in (numbers[:10], numbers[10:])]
    ideal = (halves[0] + halves[1]) / np.float32(2)
    assert not np.array_equal(whole, ideal)
    proved = enclosures.mean([Interval.point(half) for half in halves], "sum then divide", "float32")
    assert proved.contains(ideal).all()


def _sum(rows: np.ndarray) -> np.ndarray:
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


@pytest.mark.parametrize("name", CORRECT[:3])
def test_no_law_accuses_a_correct_implementation_of_the_order_of_its_sums(sim: World, name: str) -> None:
    LAWS[MEAN].check(trial_of(name, sim), ONE_STEP)
