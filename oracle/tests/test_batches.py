"""Batch arithmetic, against counting."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.batches import accumulation_steps, global_batch, offers, samples, share, tokens
from lockstep.oracle.tests.examples import examples

small = st.integers(1, 12)


@examples(100)
@given(small, small, small)
def test_accumulation_steps_undo_the_global_batch(micro_batch, accumulation, world_size):
    batch = global_batch(micro_batch, accumulation, world_size)
    assert batch == sum(micro_batch for _ in range(accumulation) for _ in range(world_size))
    assert accumulation_steps(batch, micro_batch, world_size) == accumulation


@examples(100)
@given(small, small)
def test_tokens_and_samples_undo_each_other(count, length):
    assert samples(tokens(count, length), length) == count
    assert tokens(count, length) == len([position for _ in range(count) for position in range(length)])


@examples(100)
@given(small, small, small)
def test_each_sample_of_the_batch_is_taken_once_and_the_mean_of_means_is_the_mean(
    micro_batch, accumulation, world_size
):
    batch = global_batch(micro_batch, accumulation, world_size)
    shares = [
        share(batch, micro_batch, world_size, step, rank) for step in range(accumulation) for rank in range(world_size)
    ]
    assert sorted(sample for part in shares for sample in part) == list(range(batch))
    losses = [Fraction(1, 3 + sample**2) for sample in range(batch)]
    means = [sum(losses[sample] for sample in part) / len(part) for part in shares]
    assert sum(means) / accumulation / world_size == sum(losses) / batch


def accepted(batch, micro_batch, world_size):
    try:
        accumulation_steps(batch, micro_batch, world_size)
    except ValueError:
        return False
    return True


@examples(100)
@given(st.integers(1, 60), small, small)
def test_offers_are_the_nearest_values_that_are_accepted(batch, micro_batch, world_size):
    found = offers(batch, micro_batch, world_size)
    ranks = [ranks for ranks in range(1, world_size + 1) if accepted(batch, micro_batch, ranks)]
    sizes = [size for size in range(1, micro_batch + 1) if accepted(batch, size, world_size)]
    batches = [more for more in range(batch, batch + 200) if accepted(more, micro_batch, world_size)]
    assert found.world_size == (ranks[-1] if ranks else None)
    assert found.micro_batch == (sizes[-1] if sizes else None)
    assert found.global_batch == batches[0]


def test_the_error_names_all_three_ways_out():
    with pytest.raises(ValueError, match="2 x 1024 ranks = 2048 exceeds the batch of 1024: use 512 ranks or") as caught:
        accumulation_steps(1024, 2, 1024)
    assert str(caught.value).endswith("use 512 ranks or a batch of 2048 or a micro-batch of 1")
    with pytest.raises(ValueError, match=r"= 12 does not divide the batch of 50: use a batch of 60$"):
        accumulation_steps(50, 3, 4)


@pytest.mark.parametrize("call", [lambda: global_batch(0, 1, 1), lambda: tokens(1, -1), lambda: samples(0, 1)])
def test_counts_below_one_are_refused(call):
    with pytest.raises(ValueError, match="give at least 1"):
        call()


def test_partial_sequences_and_places_outside_the_batch_are_refused():
    with pytest.raises(ValueError, match="4097 tokens are not whole sequences of 4096"):
        samples(4097, 4096)
    with pytest.raises(ValueError, match="step 2, rank 0: give steps 0"):
        share(8, 2, 2, 2, 0)
    with pytest.raises(ValueError, match="rank 2"):
        share(8, 2, 2, 0, 2)
