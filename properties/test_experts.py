"""P21: parameters that only some ranks have are averaged over these, counted once in a norm, and saved once."""

from lockstep.properties.experts import draws
from lockstep.properties.experts.expected import begin, expected
from lockstep.properties.experts.mixture import Mixture
from lockstep.properties.experts.run import each, judge_gradients, judge_weights, results, run
from lockstep.properties.law import law
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong


@law("P21", draws.mixtures, needs=lambda claims: claims.experts)
def test_an_expert_gets_the_claimed_mean_over_its_own_ranks(trial: Trial, mixture: Mixture) -> None:
    """An expert is on the ranks of its group, dense parameters are on all. All ranks of the group begin with the
    expert's own weights. After a backward each has the sum of the group's gradients, over the number of all ranks, or,
    where that is claimed, of the group's. Experts may have no tokens on some or all of their ranks.

    Why: a rank's expert has tokens of other ranks too. So the sum over a group is one over the tokens of all ranks, and
    training is the same on each mesh only if it is divided by all.

    Broken by means over the group, which are too large by the number of expert ranks; by means over all ranks, which
    mix different experts; and by gradients that stay on their ranks: NVIDIA/Megatron-LM#5956, pytorch/pytorch#160285,
    deepspeedai/DeepSpeed#6545, facebookresearch/fairseq#4220.
    """
    outcome = run(trial, mixture, mixture.world_size)
    for rank, seen in enumerate(results(outcome)):
        judge_weights(mixture, outcome, "Before the first step", rank, seen["start"], begin(mixture))
    for place, rank, seen, due in each(trial, mixture, outcome):
        judge_gradients(mixture, outcome, place, rank, seen, due)
        judge_weights(mixture, outcome, f"After step {place}", rank, seen["weights"], due.weights)


@law("P21", draws.clipped, needs=lambda claims: claims.experts and claims.clips_experts)
def test_the_norm_counts_each_expert_once_and_clips_by_it_on_every_rank(trial: Trial, mixture: Mixture) -> None:
    """`clip_grad_norm_` returns the norm of the whole model's gradient on every rank: with the experts of all ranks,
    each once, however many ranks hold it. Every gradient is clipped by this norm.

    Why: with another norm on each rank, replicas of dense parameters part. If replicas count, the norm depends on the
    number of ranks.

    Broken by norms of a rank's own experts, by means of ranks' norms, by norms without experts, and by experts that
    count once for each replica: hpcaitech/ColossalAI#2192, NVIDIA-NeMo/Automodel#3816, deepspeedai/DeepSpeed#8475,
    deepspeedai/DeepSpeed#8613.
    """
    outcome = run(trial, mixture, mixture.world_size)
    for place, rank, seen, due in each(trial, mixture, outcome):
        if seen["norm"] is not None and not due.norm.holds(seen["norm"]):
            words = f"In step {place} the norm on rank {rank} is {seen['norm']}; {due.norm} is due."
            raise SilentlyWrong(words, mixture, outcome)
        judge_gradients(mixture, outcome, place, rank, seen, due)


@law("P21", draws.saved, needs=lambda claims: claims.experts and claims.saves_experts)
def test_a_checkpoint_has_every_expert_and_restores_each_replica(trial: Trial, mixture: Mixture) -> None:
    """`full_parameters` on rank 0 has the experts of all ranks. A new wrapper that loads it with `load_full`, also on
    another mesh of data and expert ranks, goes on as if training had not been interrupted.

    Why: no rank has all experts, so a checkpoint of any single rank is not the model.

    Broken by checkpoints with one rank's experts, by ranks that all load the first experts, and by replicas that keep
    their initial weights: KempnerInstitute/KempnerForge#202, deepspeedai/DeepSpeed#6589, NVIDIA/Megatron-LM#1836.
    """
    first = run(trial, mixture, mixture.world_size)
    due = expected(mixture, trial.claims.expert_divisor)
    weights = due[len(mixture.steps) - 1].weights
    for rank, seen in enumerate(results(first)):
        judge_weights(mixture, first, "Before saving", rank, seen["got"][-1]["weights"], weights)
    second = run(trial, mixture, mixture.later_mesh.world_size, results(first)[0]["saved"])
    for rank, seen in enumerate(results(second)):
        judge_weights(mixture, second, "After loading", rank, seen["start"], weights)
        for place, got in enumerate(seen["got"]):
            right = due[len(mixture.steps) + place].weights
            judge_weights(mixture, second, f"In step {place} after loading", rank, got["weights"], right)
