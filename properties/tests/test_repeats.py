"""What comes over and over is told once, and nothing else is left out."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.properties.reports.repeats import LEAST, LONGEST, repeats


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4).flatmap(lambda x: st.integers(1, 6).map(x.__mul__)))
)
def test_the_runs_are_all_there_is_in_its_order(pieces: list[list[int]]) -> None:
    items = [item for piece in pieces for item in piece]
    again: list[int] = []
    for begin, length, times in repeats(items):
        assert begin == len(again)
        assert times == 1 or (times >= LEAST and length <= LONGEST)
        again += items[begin : begin + length] * times
    assert again == items


def test_the_shortest_run_is_told() -> None:
    assert list(repeats("abababab" + "c")) == [(0, 2, 4), (8, 1, 1)]
    assert list(repeats("aaaa")) == [(0, 1, 4)]
    assert list(repeats("xabcabcabcabcabc")) == [(0, 1, 1), (1, 3, 5)]


def test_what_comes_three_times_is_told_three_times() -> None:
    assert [length * times for _, length, times in repeats("ababab")] == [1] * 6
