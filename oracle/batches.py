"""Batch arithmetic: how many samples and tokens a step takes, over how many ranks and micro-batches."""

from dataclasses import dataclass

from lockstep.oracle.checks import check_at_least


@dataclass(frozen=True)
class Offers:
    """Changes of one number after which the batch divides: most ranks, a single-pass batch, largest micro-batch.

    None: no value of that number alone is enough.
    """

    world_size: int | None
    global_batch: int
    micro_batch: int | None


def global_batch(micro_batch: int, accumulation: int, world_size: int) -> int:
    """Samples per optimizer step = micro-batch x accumulation steps x N."""
    check_at_least(1, micro_batch=micro_batch, accumulation=accumulation, world_size=world_size)
    return micro_batch * accumulation * world_size


def tokens(samples: int, sequence_length: int) -> int:
    """Tokens per optimizer step = samples x sequence length."""
    check_at_least(1, samples=samples, sequence_length=sequence_length)
    return samples * sequence_length


def samples(batch_tokens: int, sequence_length: int) -> int:
    """Samples in a batch given in tokens; ValueError unless the sequence length divides it."""
    check_at_least(1, batch_tokens=batch_tokens, sequence_length=sequence_length)
    if batch_tokens % sequence_length:
        raise ValueError(f"{batch_tokens} tokens are not whole sequences of {sequence_length}: give a multiple of it")
    return batch_tokens // sequence_length


def accumulation_steps(batch: int, micro_batch: int, world_size: int) -> int:
    """k = global batch / (micro-batch x N).

    ValueError, with values that would fit, if this is not a whole number >= 1.
    """
    check_at_least(1, batch=batch, micro_batch=micro_batch, world_size=world_size)
    one_pass = micro_batch * world_size
    if batch % one_pass == 0:
        return batch // one_pass
    fault = "exceeds" if one_pass > batch else "does not divide"
    possible = offers(batch, micro_batch, world_size)
    choices = [f"a batch of {possible.global_batch}"]
    if possible.world_size is not None:
        choices.insert(0, f"{possible.world_size} ranks")
    if possible.micro_batch is not None:
        choices.append(f"a micro-batch of {possible.micro_batch}")
    raise ValueError(
        f"micro-batch {micro_batch} x {world_size} ranks = {one_pass} {fault} the batch of {batch}: "
        f"use {' or '.join(choices)}"
    )


def offers(batch: int, micro_batch: int, world_size: int) -> Offers:
    """The nearest values that fit: most ranks up to N, least batch from the given one, largest micro-batch up to it."""
    check_at_least(1, batch=batch, micro_batch=micro_batch, world_size=world_size)
    ranks = [ranks for ranks in range(1, world_size + 1) if batch % (micro_batch * ranks) == 0]
    micro = [size for size in range(1, micro_batch + 1) if batch % (size * world_size) == 0]
    one_pass = micro_batch * world_size
    return Offers(max(ranks, default=None), -(-batch // one_pass) * one_pass, max(micro, default=None))


def share(batch: int, micro_batch: int, world_size: int, step: int, rank: int) -> range:
    """Samples of the global batch that one rank takes in one micro-batch: [(a N + r) m, (a N + r + 1) m).

    Every sample is taken once, so that the mean over ranks and micro-batches of their means is the mean over the whole
    batch: one step on N ranks with k micro-batches = one step on one rank with the whole batch.
    """
    accumulation = accumulation_steps(batch, micro_batch, world_size)
    if not (0 <= step < accumulation and 0 <= rank < world_size):
        raise ValueError(f"step {step}, rank {rank}: give steps 0..{accumulation - 1} and ranks 0..{world_size - 1}")
    start = (step * world_size + rank) * micro_batch
    return range(start, start + micro_batch)
