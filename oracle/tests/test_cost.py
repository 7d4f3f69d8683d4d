"""Cost, against simulated rings and trees, a brute-force timeline, and published shapes of curves."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.collectives import volume
from lockstep.oracle.cost import (
    alpha_beta,
    collective_time,
    gathers,
    gibibytes,
    memory,
    moved,
    scaling_efficiency,
)
from lockstep.oracle.overlap import all_reduce_calls, best_bucket_size, bucket_ends, timeline
from lockstep.oracle.recipes import recipe
from lockstep.oracle.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from lockstep.oracle.tests.examples import examples

ADAM = recipe("bfloat16", "adam")
ALPHA, BANDWIDTH = Fraction(1, 1000), 8000


def time_of_messages(sent, ranks, element_bytes):
    """All messages of a step travel at once; steps follow one another; each message costs alpha + S/B."""
    total = Fraction(0)
    for phase, step in sorted({(message.phase, message.step) for message in sent}):
        here = [message for message in sent if (message.phase, message.step) == (phase, step)]
        assert sorted(message.sender for message in here) == list(range(ranks))
        total += max(alpha_beta(message.elements * element_bytes, ALPHA, BANDWIDTH) for message in here)
    return total


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_ring_times_are_those_of_the_ring_message_by_message(ranks):
    data = [np.arange(5.0 * ranks) + rank for rank in range(ranks)]
    for name, simulation in {
        "all_reduce": ring_all_reduce(data),
        "reduce_scatter": ring_reduce_scatter(data),
        "all_gather": ring_all_gather([array[: len(array) // ranks] for array in data]),
    }.items():
        expected = time_of_messages(simulation.messages, ranks, 8)
        assert collective_time(name, 40 * ranks, ranks, ALPHA, BANDWIDTH) == expected


@pytest.mark.parametrize("ranks", range(1, 18))
def test_tree_times_are_those_of_doubling(ranks):
    size = 16 * ranks
    have, broadcast, held, scatter = 1, Fraction(0), ranks, Fraction(0)
    while have < ranks:
        have, broadcast = 2 * have, broadcast + alpha_beta(size, ALPHA, BANDWIDTH)
    while held > 1:
        scatter += alpha_beta(16 * (held // 2), ALPHA, BANDWIDTH)
        held -= held // 2
    assert collective_time("broadcast", size, ranks, ALPHA, BANDWIDTH) == broadcast
    assert collective_time("reduce", size, ranks, ALPHA, BANDWIDTH) == broadcast
    assert collective_time("scatter", size, ranks, ALPHA, BANDWIDTH) == scatter
    assert collective_time("gather", size, ranks, ALPHA, BANDWIDTH) == scatter


def test_a_message_takes_its_latency_and_its_bytes_over_the_bandwidth():
    assert alpha_beta(10_000, Fraction(1, 1000), 4000) == Fraction(2501, 1000)
    assert collective_time("all_reduce", 10_000, 2, Fraction(1, 1000), 4000) == Fraction(2502, 1000)


@examples(100)
@given(st.integers(1, 9), st.integers(0, 50))
def test_bytes_over_bandwidth_are_the_volume_of_the_collective(ranks, size):
    for name in ("all_reduce", "reduce_scatter", "all_gather", "scatter", "gather"):
        assert collective_time(name, size, ranks, 0, 1) == volume(name, size, ranks)


@examples(100)
@given(st.integers(0, 3), st.integers(0, 10**6), st.integers(1, 64))
def test_each_stage_holds_no_more_than_the_one_before(stage, parameters, shards):
    held = [memory(each, parameters, shards, ADAM) for each in range(4)]
    assert held == sorted(held, reverse=True)
    assert memory(stage, parameters, 1, ADAM) == 16 * parameters


@examples(100)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 20))
def test_buckets_close_as_soon_as_they_are_full(sizes, cap):
    ends = bucket_ends(sizes, cap)
    assert ends == sorted(set(ends))
    assert ends[-1:] == [len(sizes)][: len(sizes)]
    begin = 0
    for end in ends:
        assert end == len(sizes) or sum(sizes[begin:end]) >= cap
        assert end - begin == 1 or sum(sizes[begin : end - 1]) < cap
        begin = end
    assert all_reduce_calls(sizes, 3, cap) == 3 * len(ends)


def ticked(forward, backward, optimizer, sizes, cap, seconds_per_byte, overlapped):
    """The same step second by second: one channel, a queue of full buckets, a clock. Returns (step, busy seconds)."""
    queue, open_bucket, channel, clock, busy = [], 0, 0, 0, 0
    left = list(backward)
    produced = 0
    while True:
        while left and left[0] == 0:
            left.pop(0)
            open_bucket += sizes[produced]
            produced += 1
            if open_bucket >= cap or not left:
                queue.append(open_bucket)
                open_bucket = 0
        while channel == 0 and queue and (overlapped or not left):
            channel = queue.pop(0) * seconds_per_byte
        if not left and not queue and channel == 0:
            return forward + clock + optimizer, busy
        clock += 1
        if left:
            left[0] -= 1
        if channel:
            channel -= 1
            busy += 1


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_timeline_is_that_of_a_clock(gradients, cap, seconds_per_byte, overlapped):
    backward, sizes = [pair[0] for pair in gradients], [pair[1] for pair in gradients]
    line = timeline(3, backward, 2, sizes, cap, lambda size: size * seconds_per_byte, overlapped)
    step, busy = ticked(3, backward, 2, sizes, cap, seconds_per_byte, overlapped)
    assert (line.step, line.communication) == (step, busy)
    assert line.exposed == step - 5 - sum(backward)
    assert line.overlap == (1 - line.exposed / busy if busy else 0)
    assert line.efficiency == Fraction(5 + sum(backward)) / step


def test_a_timeline_worked_out_by_hand():
    line = timeline(10, [2, 2, 2, 2], 1, [5, 5, 5, 5], 10, lambda size: 1 + Fraction(size, 4))
    assert [(sent.bytes, sent.ready, sent.start, sent.end) for sent in line.buckets] == [
        (10, 4, 4, Fraction(15, 2)),
        (10, 8, 8, Fraction(23, 2)),
    ]
    assert (line.step, line.exposed, line.communication) == (Fraction(45, 2), Fraction(7, 2), 7)
    assert (line.overlap, line.efficiency) == (Fraction(1, 2), Fraction(38, 45))


@examples(100)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 30), st.integers(1, 5))
def test_the_last_bucket_is_never_hidden(sizes, cap, seconds_per_byte):
    line = timeline(1, [50] * len(sizes), 1, sizes, cap, lambda size: size * seconds_per_byte)
    last = line.buckets[-1]
    assert line.exposed >= last.end - last.start > 0
    assert line.step > 1 + max(line.backward, line.communication) + 1


def step_of(cap, alpha):
    return timeline(10, [1] * 64, 1, [100] * 64, cap, lambda size: alpha + Fraction(size, 200)).step


def test_step_time_falls_and_then_rises_over_the_bucket_size():
    caps = [100 * 2**power for power in range(7)]
    steps = [step_of(cap, 2) for cap in caps]
    best = best_bucket_size(caps, lambda cap: step_of(cap, 2))
    place = caps.index(best)
    assert 0 < place < len(caps) - 1
    assert all(step > bigger for step, bigger in pairwise(steps[: place + 1]))
    assert all(step < bigger for step, bigger in pairwise(steps[place:]))


def test_without_latency_the_smallest_bucket_is_best_and_equals_go_to_the_smaller():
    assert best_bucket_size([6400, 200, 100], lambda cap: step_of(cap, 0)) == 100
    assert best_bucket_size([300, 200, 100], lambda cap: 7) == 100
    with pytest.raises(ValueError, match="at least one"):
        best_bucket_size([], lambda cap: 0)


def test_scaling_efficiency_is_throughput_over_n_times_that_of_one():
    line = timeline(10, [4], 1, [3], 1, lambda size: 5)
    batch, ranks = 6, 8
    throughput, of_one = Fraction(batch * ranks) / line.step, Fraction(batch) / line.computation
    assert scaling_efficiency(throughput, ranks, of_one) == line.efficiency == Fraction(15, 20)


def test_a_gibibyte_is_2_to_the_30():
    assert gibibytes(2**31) == 2


def test_layers_that_are_kept_are_gathered_once():
    assert [gathers(3, kept) for kept in range(4)] == [6, 5, 4, 3]


def test_bad_input_is_refused_in_words():
    with pytest.raises(ValueError, match="stage 5"):
        memory(5, 1, 1, ADAM)
    with pytest.raises(ValueError, match="stage 4"):
        moved(4, 10, 2)
    with pytest.raises(ValueError, match="shards 0"):
        moved(1, 10, 0)
    with pytest.raises(ValueError, match="parameters -1"):
        moved(1, -1, 2)
    with pytest.raises(ValueError, match="2 synchronizations in 1 micro-batches"):
        moved(1, 10, 2, synchronizations=2)
    with pytest.raises(ValueError, match="kept 11 of 10"):
        moved(3, 10, 2, kept=11)
    with pytest.raises(ValueError, match="kept 1 of 10 parameters at stage 2"):
        moved(2, 10, 2, kept=1)
    with pytest.raises(ValueError, match="2 replicas without a reduce-scatter"):
        moved(0, 10, 2, replicas=2)
    with pytest.raises(ValueError, match="a choice of stage 1"):
        moved(2, 10, 2, all_reduce_gradients=True)
    with pytest.raises(ValueError, match="keep_last 3 of 2"):
        gathers(2, 3)
    with pytest.raises(ValueError, match="bandwidth 0"):
        alpha_beta(1, 1, 0)
    with pytest.raises(ValueError, match="no time known for 'barrier'"):
        collective_time("barrier", 1, 1, 1, 1)
    with pytest.raises(ValueError, match="world_size 0"):
        collective_time("all_reduce", 1, 0, 1, 1)
    with pytest.raises(ValueError, match="throughput of one rank 0"):
        scaling_efficiency(1, 1, 0)
    with pytest.raises(ValueError, match="1 backward times for 2 gradients"):
        timeline(1, [1], 1, [1, 2], 1, lambda size: 1)
    with pytest.raises(ValueError, match="is negative"):
        timeline(-1, [1], 1, [1], 1, lambda size: 1)
    with pytest.raises(ValueError, match="cap -1"):
        bucket_ends([1], -1)
    with pytest.raises(ValueError, match="synchronizations -1"):
        all_reduce_calls([1], -1)
