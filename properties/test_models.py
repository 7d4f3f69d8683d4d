"""P1 to P4, P11, P12 and P16 on real models instead of probes."""

from functools import partial

from lockstep.properties.law import law
from lockstep.properties.models import data, judge
from lockstep.properties.models.draws import (
    continued_scenarios,
    evaluated_scenarios,
    model_scenarios,
    provable_scenarios,
    saved_scenarios,
)
from lockstep.properties.models.proved import expect, unseen
from lockstep.properties.models.run import run
from lockstep.properties.models.scenario import BUFFERED, SPARSE, ModelScenario
from lockstep.properties.trial import Trial

SEEN = "no faulty mean could lie in the intervals"
ROUNDING = ModelScenario("transformer")
APART = "ranks had looked up other rows"
FLOWED = "a gradient flowed through to the inputs"
CONTINUED = ModelScenario(through=True)
OTHERWISE = "a model was evaluated that does otherwise in training"
EVALUATED = ModelScenario("transformer", evaluated=1)


@law("P1", provable_scenarios, witnesses={SEEN: ROUNDING})
def test_a_real_model_gets_the_mean_gradient_of_the_whole_batch(trial: Trial, scenario: ModelScenario) -> None:
    """After each synchronization every gradient of a real model is the mean over ranks, and every step follows it.

    Why: gradients of real models reach a wrapper in ways that probes do not have: modules used several times, dropout,
    recomputed activations, unused outputs.

    Broken by taking hooks for uses: pytorch/pytorch#187732.
    """
    found = run(trial, scenario)
    expected = expect(trial, scenario, found.observations[0])
    judge.gradients(found, expected, "A real model's gradients are not the mean over ranks.")
    if not expected.terms or trial.claims.stage is None or trial.claims.same_bits:
        judge.parameters(found, expected, "A real model's step is not the optimizer's on the mean gradient.")
    # Models in integers have no intervals that could hide a fault. Implementations that do not claim plain bits are
    # checked on these alone.
    if (expected.terms or not trial.claims.plain_bits) and not trial.witnessed[SEEN]:
        wire = trial.claims.wire_dtype or ""
        trial.witnessed[SEEN] += not unseen(expected, trial.claims.averaging, scenario.dtype, wire)


@law(
    "P1",
    partial(provable_scenarios, models=(SPARSE,)),
    needs=lambda claims: claims.sparse_gradients and claims.most_ranks > 1,
    witnesses={APART: ModelScenario(SPARSE)},
)
def test_sparse_gradients_are_averaged_row_by_row(trial: Trial, scenario: ModelScenario) -> None:
    """Each row of a sparse gradient, such as an embedding's, is the mean over ranks of their entries for it. A rank may
    have none, or several. Every step follows the mean.

    Why: each rank looks up its own rows, and one of them twice. A missing row is zero and counts.

    Broken by averaging only dense gradients: horovod/horovod#2279.
    """
    found = run(trial, scenario)
    expected = expect(trial, scenario, found.observations[0])
    words = [{*data.batch(scenario, rank, 0)["inputs"].tolist()} for rank in range(scenario.world_size)]
    trial.witnessed[APART] += any(mine != words[0] for mine in words)
    judge.gradients(found, expected, "Sparse gradients are not the mean over ranks.")
    judge.parameters(found, expected, "A step on sparse gradients is not that on the mean.")


@law("P2", continued_scenarios, needs=lambda claims: claims.plain_bits, witnesses={FLOWED: CONTINUED})
def test_a_model_hands_back_the_gradient_of_its_own_ranks_loss(trial: Trial, scenario: ModelScenario) -> None:
    """Inputs that require a gradient get that of their own rank's loss, at its own scale. Parameters get the mean.

    Why: the code that made the inputs, such as another wrapped model, takes a mean of its own.

    Broken by casting inputs without autograd: facebookresearch/fairscale#1191.
    """
    found = run(trial, scenario)
    expected = expect(trial, scenario, found.observations[0])
    of_ranks = [mine for by_rank in expected.inputs for (mine,) in by_rank]
    trial.witnessed[FLOWED] += any(mine is not None and mine.any() for mine in of_ranks)
    judge.inputs(found, expected, "Inputs do not get the gradient of their own rank's loss.")
    judge.gradients(found, expected, "Where inputs take a gradient, those of parameters are not the mean over ranks.")


@law("P3", partial(provable_scenarios, accumulating=True), needs=lambda claims: claims.accumulation)
def test_a_real_model_accumulates_under_no_sync_and_each_micro_batch_counts_once(
    trial: Trial, scenario: ModelScenario
) -> None:
    """The mean after micro-batches under `no_sync` contains each of them once, on every rank.

    Why: averaging is linear, so it can wait.

    Broken by keeping only the last: NVIDIA/Megatron-LM#7186.
    """
    found = run(trial, scenario)
    expected = expect(trial, scenario, found.observations[0])
    judge.gradients(found, expected, "Accumulated micro-batches of a real model do not count once each.")


@law("P4", model_scenarios)
def test_replicas_of_a_real_model_stay_bitwise_equal(trial: Trial, scenario: ModelScenario) -> None:
    """After construction and every step all ranks have the same parameters, whatever random numbers each has drawn.

    Why: nothing makes replicas equal again. Ranks drop different activations, as they must.

    Broken where reduction ends silently: with a static graph and `no_sync`, or in the bucket of an unused parameter:
    pytorch/pytorch#187732, pytorch/pytorch#128949.
    """
    found = run(trial, scenario)
    judge.begins_alike(found, "Replicas of a real model do not begin alike.", False)
    for step in range(len(scenario.local)):
        judge.replicas(found, "Replicas of a real model differ.", "parameters", step)


@law("P11", saved_scenarios, needs=lambda claims: claims.saves_state)
def test_a_real_model_that_is_saved_and_loaded_goes_on_as_if_nothing_had_happened(
    trial: Trial, scenario: ModelScenario
) -> None:
    """If a model is saved after a step, built anew from other values, and loaded, its gradients, parameters and buffers
    are those of an uninterrupted run.

    Why: real models have parts that probes do not have: names shared by modules, tied tensors, frozen layers, buffers,
    integer counts, state outside the state dict.

    Broken by loading that unties tensors, by truncated names, by files without frozen parameters:
    huggingface/accelerate#1204, deepspeedai/DeepSpeed#6771.
    """
    found = run(trial, scenario)
    expected = expect(trial, scenario, found.observations[0])
    judge.gradients(found, expected, "A real model that was saved and loaded goes on with wrong gradients.")
    if not expected.terms or trial.claims.stage is None or trial.claims.same_bits:
        judge.parameters(found, expected, "A real model that was saved and loaded goes on with wrong steps.")
    if trial.claims.plain_bits:
        judge.buffers(found, expected, "A real model that was saved and loaded goes on with wrong buffers.")


@law(
    "P12",
    evaluated_scenarios,
    needs=lambda claims: claims.plain_bits and claims.evaluates,
    witnesses={OTHERWISE: EVALUATED},
)
def test_a_real_model_is_evaluated_as_it_is_without_a_wrapper(trial: Trial, scenario: ModelScenario) -> None:
    """In evaluation mode a model gives, on every rank, the same bits as the plain model with the parameters of the last
    step. Training then continues unchanged.

    Why: modules behave differently in evaluation: dropout ends, and running statistics replace those of the batch.

    Broken by a mode that is fixed at construction, and by one that is not restored: deepspeedai/DeepSpeed#1781,
    unslothai/unsloth#11238.
    """
    found = run(trial, scenario)
    expected = expect(trial, scenario, found.observations[0])
    trial.witnessed[OTHERWISE] += scenario.model in ("transformer", "batch norm")
    judge.outputs(found, expected, "In evaluation a real model does not give what it gives by itself.")
    judge.gradients(found, expected, "A real model that was evaluated goes on with wrong gradients.")


@law(
    "P16",
    partial(provable_scenarios, models=BUFFERED),
    needs=lambda claims: claims.buffers is not None and claims.plain_bits,
)
def test_buffers_begin_alike_and_follow_the_policy_claimed(trial: Trial, scenario: ModelScenario) -> None:
    """Buffers begin as rank 0's. From then on each rank has its own, or rank 0's before each forward, as claimed.

    Why: running statistics are saved with the model and decide its evaluation. A buffer that forward assigns anew is
    still the model's. Integer buffers are buffers too.

    Broken by sending none: pytorch/pytorch#111138.
    """
    found = run(trial, scenario)
    judge.begins_alike(found, "Buffers do not begin alike.", True)
    expected = expect(trial, scenario, found.observations[0])
    judge.buffers(found, expected, "Buffers are not what the policy claimed makes them.")
