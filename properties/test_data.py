"""P20: samplers and loaders deal every sample to one rank, and continue where they were interrupted."""

from dataclasses import replace

from lockstep.properties.claims import Claims
from lockstep.properties.data import draws, judge
from lockstep.properties.data.dealing import Dealing
from lockstep.properties.data.run import results, run, together
from lockstep.properties.law import law
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong

EPOCHS = 2


def shuffles(claims: Claims) -> bool:
    """True if the sampler can shuffle."""
    return claims.sampler and claims.shuffles


@law("P20", draws.dealings, needs=lambda claims: claims.sampler)
def test_each_epoch_deals_every_sample_to_one_rank(trial: Trial, dealing: Dealing) -> None:
    """If ranks cannot share the samples evenly, some are repeated, or some ranks get fewer, or some are dropped, as is
    claimed. All batches but a rank's last have the size that was asked for. `len` is the number of items. Without
    shuffling, all epochs are equal.

    Why: a sample on two ranks counts twice in the mean. Ranks with different numbers of batches wait for each other for
    ever.

    Broken by a seed for each rank, by a length that is divided before it is shuffled, by ranks with a batch
    more, and by a `len` that forgets the remainder: NVlabs/LongLive#71, modelscope/ms-swift#9907, m2lines/Samudra#557,
    huggingface/accelerate#4122.
    """
    outcome = run(trial, dealing, "epochs", epochs=EPOCHS)
    seen, remainder = results(outcome), judge.remainder_of(dealing, trial.claims)
    for number in range(EPOCHS):
        shares = [rank["got"][number][1] for rank in seen]
        wrong = judge.wrong_shares(dealing, shares, range(dealing.length), remainder)
        wrong = wrong or judge.wrong_lengths(shares, [rank["lengths"][number] for rank in seen])
        if wrong:
            raise SilentlyWrong(f"In epoch {dealing.epoch + number}: {wrong}", dealing, outcome)
        if trial.claims.shuffles and not dealing.shuffle:
            for rank, items in enumerate(shares):
                if wrong := judge.first_difference(rank, items, seen[rank]["got"][0][1], "Without shuffling"):
                    raise SilentlyWrong(wrong, dealing, outcome)


@law("P20", draws.shuffled, needs=shuffles)
def test_a_shuffled_order_is_another_each_epoch_and_the_same_again(trial: Trial, dealing: Dealing) -> None:
    """A new process gets the same order in the same epoch, even if it has skipped the epochs before. Another epoch has
    another order, and so has another seed.

    Why: if the order stays, the batches are the same in each epoch. If it depends on history, it cannot be resumed.

    Broken by a `set_epoch` that nobody heeds or hands on, by a generator that runs on from epoch to epoch, and by a
    seed that is dropped: pytorch/pytorch#31771, m2lines/Samudra#717, open-mmlab/mmagic#815.
    """
    outcome = run(trial, dealing, "epochs", epochs=EPOCHS)
    orders = [[rank["got"][number][1] for rank in results(outcome)] for number in range(EPOCHS)]
    if orders[0] == orders[1]:
        raise SilentlyWrong(f"Epochs {dealing.epoch} and {dealing.epoch + 1} have the same order.", dealing, outcome)
    for number, wanted in enumerate(orders):
        again = replace(dealing, epoch=dealing.epoch + number)
        repeated = run(trial, again, "epochs", epochs=1)
        for rank, seen in enumerate(results(repeated)):
            what = f"In a new process, in epoch {again.epoch},"
            if wrong := judge.first_difference(rank, seen["got"][0][1], wanted[rank], what):
                raise SilentlyWrong(wrong, again, repeated)
    other = run(trial, replace(dealing, seed=dealing.seed + 1), "epochs", epochs=1)
    if [rank["got"][0][1] for rank in results(other)] == orders[0]:
        words = f"Seeds {dealing.seed} and {dealing.seed + 1} give the same order in epoch {dealing.epoch}."
        raise SilentlyWrong(words, dealing, outcome)


@law("P20", draws.interrupted, needs=lambda claims: claims.sampler and claims.resumes is not None)
def test_what_is_resumed_goes_on_with_the_next_sample(trial: Trial, dealing: Dealing) -> None:
    """State is saved after any item or at the end of an epoch, and loaded in a new process of the same rank, once or
    several times. The rest of the epoch and the next epoch are those of a run without interruptions.

    Why: no loss shows that samples come again or never.

    Broken by a position that is counted from the last
    resumption, or by repeating the order of epoch 0. Broken where an ended epoch is taken for one to be
    skipped, and by skipping as many in each later epoch: KempnerInstitute/KempnerForge#58,
    huggingface/accelerate#4071, meta-pytorch/data#1513.
    """
    outcome = run(trial, dealing, "interrupted", then=2)
    seen = results(outcome)
    most = sum(stop < 0 for stop in dealing.stops) + 2
    whole = results(run(trial, replace(dealing, stops=()), "epochs", epochs=most))
    for rank, told in enumerate(seen):
        got = [item for _, items in told["got"] for item in items]
        wanted = [item for _, items in whole[rank]["got"] for item in items]
        if wrong := judge.first_difference(rank, got, wanted, f"Counted from the beginning of epoch {dealing.epoch},"):
            raise SilentlyWrong(wrong, dealing, outcome)


@law("P20", draws.resumed_elsewhere, needs=lambda claims: claims.sampler and claims.resumes == "any ranks")
def test_what_is_resumed_on_other_ranks_repeats_and_misses_nothing(trial: Trial, dealing: Dealing) -> None:
    """Rank 0's state is loaded on another number of ranks. They get the samples that no rank has had in this epoch, and
    then whole epochs.

    Why: a job that loses a machine goes on with fewer ranks.

    Broken by positions that are each rank's own, and mean other
    samples where there are more ranks: huggingface/transformers#40245, OpenRLHF/OpenRLHF#1067.
    """
    before = run(trial, replace(dealing, onto=0), "interrupted", then=0)
    seen = results(before)
    epoch, taken = seen[0]["at"]
    had = {
        sample for rank in seen for _, items in rank["got"][_parts_of_the_last(dealing) :] for sample in _flat(items)
    }
    after = run(trial, dealing, "interrupted", dealing.onto, then=2, state=seen[0]["state"], at=[epoch, taken])
    everything = range(dealing.length)
    remainder = judge.remainder_of(dealing, trial.claims)
    for number, left in enumerate(([each for each in everything if each not in had], everything)):
        shares = [rank["got"][number][1] for rank in results(after)]
        if wrong := judge.wrong_shares(dealing, shares, left, remainder, everything):
            raise SilentlyWrong(
                f"In epoch {epoch + number}, on {dealing.onto} ranks: {wrong}", dealing, together(before, after)
            )


@law("P20", draws.evaluations, needs=lambda claims: claims.sampler and claims.gathers)
def test_an_evaluation_counts_every_sample_once(trial: Trial, dealing: Dealing) -> None:
    """`gather_for_metrics` of all batches of an epoch returns every sample once, on every rank.

    Why: shards are padded so that all ranks have as many batches. A metric must be that of the data set.

    Broken by counting padding, and by a remainder that is cut off where there is none or from the wrong end:
    huggingface/accelerate#350, huggingface/accelerate#952, roboflow/rf-detr#1507.
    """
    outcome = run(trial, dealing, "evaluation")
    for rank, seen in enumerate(results(outcome)):
        gathered = seen["gathered"]
        for sample in range(dealing.length):
            if (times := gathered.count(sample)) != 1:
                words = f"On rank {rank} sample {sample} of {dealing.length} counts {times} times."
                raise SilentlyWrong(words, dealing, outcome)
        if len(gathered) != dealing.length:
            raise SilentlyWrong(f"On rank {rank} {len(gathered)} samples count, of {dealing.length}.", dealing, outcome)


def _parts_of_the_last(dealing: Dealing) -> int:
    """The index of the first part of the epoch with the last interruption."""
    return max((place + 1 for place, stop in enumerate(dealing.stops) if stop < 0), default=0)


def _flat(items: list[list[int]]) -> list[int]:
    return judge.samples_of(items)
