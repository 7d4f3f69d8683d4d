"""Programs of ranks, played: against the timeline of buckets, and by hand."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.overlap import bucket_ends, timeline
from lockstep.oracle.played import Compute, Launch, Wait, play
from lockstep.oracle.tests.examples import examples


def buckets(backward, sizes, cap, overlapped):
    """What each rank does whose buckets go out as soon as they are full, and which waits for all at the end."""
    acts, ends = [Compute("forward", "", Fraction(3))], bucket_ends(sizes, cap)
    launches = []
    for index, seconds in enumerate(backward):
        acts.append(Compute("backward", str(index), Fraction(seconds)))
        if index + 1 in ends:
            launches.append(Launch(("g", ends.index(index + 1))))
            acts += launches[-1:] if overlapped else []
    acts += [] if overlapped else launches
    return [*acts, *(Wait(("g", place)) for place in range(len(ends))), Compute("optimizer", "", Fraction(2))]


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 3),
)
def test_buckets_that_go_out_when_full_have_the_timeline_of_the_formula(gradients, cap, per_byte, overlapped, ranks):
    backward, sizes = [pair[0] for pair in gradients], [pair[1] for pair in gradients]
    line = timeline(3, backward, 2, sizes, cap, lambda size: size * per_byte, overlapped)
    seconds = {("g", place): bucket.end - bucket.start for place, bucket in enumerate(line.buckets)}
    played = play([buckets(backward, sizes, cap, overlapped)] * ranks, dict.fromkeys(seconds, range(ranks)), seconds)
    assert (played.step, played.computation, played.exposed) == (line.step, line.computation, line.exposed)
    assert (played.communication, played.overlap) == (line.communication, line.overlap)
    assert played.compute_share == line.efficiency
    assert [(each.start - 3, each.end - 3) for each in played.travels] == [(b.start, b.end) for b in line.buckets]


def test_a_collective_begins_when_its_last_member_comes_and_its_group_is_free():
    first, second, other = ("all", 0), ("all", 1), ("pair", 0)
    slow = [Compute("backward", "a", Fraction(5)), Launch(first), Launch(second), Wait(second)]
    fast = [Launch(first), Launch(second), Launch(other), Wait(other), Wait(first)]
    third = [Launch(first), Launch(second), Launch(other)]
    played = play(
        [slow, fast, third],
        {first: (0, 1, 2), second: (0, 1, 2), other: (1, 2)},
        dict.fromkeys((first, second, other), Fraction(2)),
    )
    assert [(each.collective, each.start, each.end) for each in played.travels] == [
        (other, 0, 2),
        (first, 5, 7),
        (second, 7, 9),
    ]
    waits = [
        [(span.start, span.end, span.collective) for span in spans if span.kind == "wait"] for spans in played.ranks
    ]
    assert waits == [[(5, 9, second)], [(0, 2, other), (2, 7, first)], []]
    assert (played.step, played.communication, played.computation) == (9, 6, 5)
    assert played.travels[1].launched == {0: 5, 1: 0, 2: 0}


def test_nothing_takes_no_time():
    played = play([[], []], {}, {})
    assert (played.step, played.communication, played.overlap, played.compute_share) == (0, 0, 0, 1)


def test_ranks_that_wait_for_what_a_member_never_launches_are_told():
    with pytest.raises(ValueError, match=r"ranks \[0\] wait for a collective that some member never launches"):
        play([[Launch(("g", 0)), Wait(("g", 0))], []], {("g", 0): (0, 1)}, {("g", 0): Fraction(1)})
