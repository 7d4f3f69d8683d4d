"""P19: a training loop steps once per window, by the mean that it claims over all ranks and micro-batches."""

from lockstep.properties.law import law
from lockstep.properties.loops import draws
from lockstep.properties.loops.expected import Between
from lockstep.properties.loops.run import each, run
from lockstep.properties.loops.training import Training
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong


@law("P19", draws.trainings, needs=lambda claims: claims.loop)
def test_a_window_is_one_step_on_the_mean_that_is_claimed(trial: Trial, training: Training) -> None:
    """A window is the micro-batches of all ranks up to an optimizer step. Ranks and micro-batches have different
    numbers of tokens that count, or none. The last window may have fewer micro-batches, or no token at all. The step is
    that of one batch with all samples, under the claimed mean: over all tokens, per rank, or per micro-batch.

    Why: accumulation and ranks are there to make a batch larger, and must not weigh its samples anew.

    Broken by averages of averages, by a count of one rank's tokens, by a divisor of a full window where the last is
    not full, and by 0/0 without tokens: huggingface/transformers#34242, huggingface/transformers#34191,
    Lightning-AI/pytorch-lightning#19987, allenai/OLMo-core#657.
    """
    outcome = run(trial, training)
    for place, rank, seen, due in each(trial, training, outcome):
        for name, got, right in zip("vw", seen["weights"], due.weights, strict=True):
            if not right.holds(got):
                words = f"After window {place} weight {name} of rank {rank} is {got}; {right} is due."
                raise SilentlyWrong(words, training, outcome)


@law("P19", draws.with_tokens, needs=lambda claims: claims.loop)
def test_the_reported_loss_is_that_of_the_whole_window_on_every_rank(trial: Trial, training: Training) -> None:
    """The loss that `train_step` returns is the claimed mean over the window's tokens, before the step.

    Why: people compare losses between runs on other numbers of ranks and micro-batches.

    Broken by a loss of one rank, of the last micro-batch, or summed over ranks or micro-batches:
    huggingface/transformers#13681, karpathy/nanochat#515, agokrani/distillKitPlus#5, huggingface/transformers#37474.
    """
    outcome = run(trial, training)
    for place, rank, seen, due in each(trial, training, outcome):
        if not due.loss.holds(seen["loss"]):
            words = f"In window {place} rank {rank} reports a loss of {seen['loss']}; {due.loss} is due."
            raise SilentlyWrong(words, training, outcome)


@law("P19", draws.clipped, needs=lambda claims: claims.loop and claims.clips_norm)
def test_the_norm_is_that_of_the_final_gradient_and_clips_it_once(trial: Trial, training: Training) -> None:
    """The norm that `train_step` returns is that of the whole window's gradient, over all ranks, before clipping. The
    gradient is clipped once, by this norm.

    Why: the norm of a part is smaller or larger than that of the whole, and parts that are clipped lose their weights.

    Broken by clipping each micro-batch, by clipping before ranks are averaged, and by reporting the norm after
    clipping: facebookresearch/lingua#59, huggingface/transformers#1563, huggingface/accelerate#641.
    """
    outcome = run(trial, training)
    for place, rank, seen, due in each(trial, training, outcome):
        if not due.norm.holds(seen["norm"]):
            words = f"In window {place} rank {rank} reports a norm of {seen['norm']}; {due.norm} is due."
            raise SilentlyWrong(words, training, outcome)
        for name, got, right in zip("vw", seen["weights"], due.weights, strict=True):
            if not right.holds(got):
                words = f"After window {place} weight {name} of rank {rank} is {got}; {right} is due."
                raise SilentlyWrong(words, training, outcome)


@law("P19", draws.scheduled, needs=lambda claims: claims.loop and claims.follows_schedule)
def test_a_schedule_goes_on_once_for_each_optimizer_step(trial: Trial, training: Training) -> None:
    """The reported learning rate is that of the window's step. The schedule goes on by one after each step, and not
    after a window whose step was skipped because a gradient overflowed on some rank.

    Why: a schedule is planned for a number of optimizer steps, whatever the numbers of ranks and micro-batches.

    Broken by a step of the schedule for each process, for each micro-batch, or for a skipped optimizer step:
    huggingface/transformers#24088, huggingface/accelerate#2926, tracel-ai/burn#5695,
    Lightning-AI/pytorch-lightning#18828.
    """
    outcome = run(trial, training)
    for place, rank, seen, due in each(trial, training, outcome):
        if seen["rate"] != due.rate:
            words = f"In window {place} rank {rank} has the learning rate {seen['rate']}; {float(due.rate)} is due."
            raise SilentlyWrong(words, training, outcome)
        if place == training.overflow and not all(map(Between.holds, due.weights, seen["weights"])):
            words = f"The gradient of window {place} overflows, and rank {rank} steps: {seen['weights']}."
            raise SilentlyWrong(words, training, outcome)
