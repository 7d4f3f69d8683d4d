"""The sampler's contract, by counting how often each sample is seen."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.sampler import epoch_order, rank_indices, samples_per_rank
from lockstep.oracle.tests.examples import examples

orders = st.integers(0, 40).flatmap(lambda length: st.permutations(range(length)))
worlds = st.integers(1, 12)


def seen(order, world_size, drop_last):
    return [rank_indices(order, world_size, rank, drop_last) for rank in range(world_size)]


@examples(100)
@given(orders, worlds, st.booleans())
def test_all_ranks_get_the_same_number_of_samples(order, world_size, drop_last):
    lengths = {len(indices) for indices in seen(order, world_size, drop_last)}
    whole, rest = divmod(len(order), world_size)
    assert lengths == {samples_per_rank(len(order), world_size, drop_last)} == {whole + (rest > 0 and not drop_last)}


@examples(100)
@given(orders, worlds)
def test_padded_sets_cover_the_data_set_and_repeat_its_beginning(order, world_size):
    counts = Counter(index for indices in seen(order, world_size, False) for index in indices)
    assert set(counts) == set(order)
    expected, place = Counter(order), 0
    while order and sum(expected.values()) % world_size:
        expected[order[place % len(order)]] += 1
        place += 1
    assert counts == expected


@examples(100)
@given(orders, worlds)
def test_with_drop_last_no_sample_is_seen_twice_and_only_the_tail_is_left_out(order, world_size):
    counts = Counter(index for indices in seen(order, world_size, True) for index in indices)
    assert counts == Counter(order[: len(order) - len(order) % world_size])


@examples(100)
@given(orders, worlds, st.booleans())
def test_one_after_the_other_the_ranks_read_the_order(order, world_size, drop_last):
    rounds = zip(*seen(order, world_size, drop_last), strict=True)
    read = [index for indices in rounds for index in indices]
    common = min(len(read), len(order))
    assert read[:common] == list(order[:common])


def test_padded_index_sets_overlap():
    assert seen(range(5), 4, False) == [(0, 4), (1, 0), (2, 1), (3, 2)]
    assert seen(range(2), 5, False) == [(0,), (1,), (0,), (1,), (0,)]
    assert seen(range(5), 4, True) == [(0,), (1,), (2,), (3,)]


def test_the_epoch_counts_only_with_shuffling():
    def rotated(seed):
        return [(place + seed) % 6 for place in range(6)]

    assert list(epoch_order(6, 3, True, rotated)) == [3, 4, 5, 0, 1, 2]
    assert epoch_order(6, 1, True, rotated, seed=2) == epoch_order(6, 3, True, rotated)
    assert list(epoch_order(6, 0, False, rotated)) == list(epoch_order(6, 3, False, rotated)) == list(range(6))


def test_bad_input_is_refused_in_words():
    with pytest.raises(ValueError, match="rank 4 in a world of 4"):
        rank_indices(range(5), 4, 4)
    with pytest.raises(ValueError, match="rank -1"):
        rank_indices(range(5), 4, -1)
    with pytest.raises(ValueError, match=r"each of 0\.\.2 once"):
        rank_indices([0, 1, 1], 2, 0)
    with pytest.raises(ValueError, match="5 samples on 0 ranks"):
        rank_indices(range(5), 0, 0)
    with pytest.raises(ValueError, match="-1 samples"):
        samples_per_rank(-1, 2)
