"""Layouts: one owner per element, by brute force, and the known shares of each scheme."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.shards import (
    Layout,
    Range,
    by_layer,
    chunked,
    flat,
    from_shards,
    greedy,
    join,
    numel,
    squared_norm,
    to_shards,
)
from lockstep.oracle.tests.examples import examples

shapes = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple), max_size=4
)
worlds = st.integers(1, 9)


def owners(layout):
    """How many ranks own each element, by brute force: a count per element."""
    counts = {name: np.zeros(numel(shape), int) for name, shape in layout.shapes.items()}
    for ranges in layout.owned:
        for name, start, stop in ranges:
            for element in range(start, stop):
                counts[name][element] += 1
    return counts


def numbered(layout):
    """Tensors in which no two elements are equal."""
    tensors, first = {}, 1
    for name, shape in layout.shapes.items():
        tensors[name] = np.arange(first, first + numel(shape), dtype=np.float64).reshape(shape)
        first += numel(shape)
    return tensors


def every_layout(shapes, world_size):
    names = list(shapes)
    halves = [{name: shapes[name] for name in names[::2]}, {name: shapes[name] for name in names[1::2]}]
    return {
        "flat": flat(shapes, world_size),
        "chunked": chunked(shapes, world_size),
        "greedy": greedy(halves, world_size),
        "two flat buffers": join([flat(half, world_size) for half in halves]),
        "flat, by layer": join(by_layer(flat(shapes, world_size), [names[::2], names[1::2]])),
        "greedy, by layer": join(by_layer(greedy([shapes], world_size), [names[1::2], names[::2]])),
    }


@examples(100)
@given(shapes, worlds)
def test_every_element_has_exactly_one_owner(shapes, world_size):
    for name, layout in every_layout(shapes, world_size).items():
        assert all((counts == 1).all() for counts in owners(layout).values()), name
        assert layout.world_size == world_size
        assert sum(layout.counts) == layout.elements == sum(np.zeros(shape).size for shape in shapes.values())


@examples(100)
@given(shapes, worlds)
def test_shards_give_back_the_tensors_they_were_cut_from(shapes, world_size):
    for layout in every_layout(shapes, world_size).values():
        tensors = numbered(layout)
        shards = to_shards(layout, tensors)
        assert sorted(value for shard in shards for value in shard) == list(range(1, layout.elements + 1))
        back = from_shards(layout, shards)
        assert back.keys() == tensors.keys()
        assert all(back[name].tobytes() == tensors[name].tobytes() for name in tensors)
        assert all(back[name].shape == tensors[name].shape for name in tensors)


@examples(100)
@given(shapes, worlds)
def test_a_flat_layout_is_the_concatenation_cut_into_equal_slices(shapes, world_size):
    layout = flat(shapes, world_size)
    tensors = numbered(layout)
    buffer = [value for tensor in tensors.values() for value in tensor.reshape(-1)]
    while len(buffer) % world_size:
        buffer.append(None)
    size = len(buffer) // world_size
    for rank, shard in enumerate(to_shards(layout, tensors)):
        piece = buffer[rank * size : (rank + 1) * size]
        assert [value for value in piece if value is not None] == list(shard)
        assert layout.padded[rank] == layout.state[rank] == size


@examples(100)
@given(shapes, worlds)
def test_chunked_layouts_give_whole_rows_and_pad_to_the_first_rank(shapes, world_size):
    layout = chunked(shapes, world_size)
    for name, shape in shapes.items():
        rows = [
            sum(1 for row in range(shape[0]) for r in ranges if r[0] == name and r[1] <= row * numel(shape[1:]) < r[2])
            for ranges in layout.owned
        ]
        if numel(shape[1:]):
            assert sum(rows) == shape[0]
            assert rows == sorted(rows, reverse=True)
            full = [count for count in rows if count == rows[0]]
            assert len([count for count in rows if count]) <= len(full) + 1
    assert set(layout.padded) == {layout.counts[0]}
    assert layout.state == layout.counts


@examples(100)
@given(st.lists(shapes.filter(bool), min_size=1, max_size=3), worlds)
def test_greedy_shares_differ_by_at_most_the_largest_parameter(groups, world_size):
    groups = [{f"{index}{name}": shape for name, shape in group.items()} for index, group in enumerate(groups)]
    layout = greedy(groups, world_size)
    largest = max(numel(shape) for shape in layout.shapes.values())
    assert max(layout.counts) - min(layout.counts) <= largest
    assert all((start, stop) == (0, numel(layout.shapes[name])) for part in layout.owned for name, start, stop in part)


@pytest.mark.parametrize(
    ("layout", "counts", "padded", "state"),
    [
        (flat({"a": (5,), "b": (2, 2)}, 4), (3, 3, 3, 0), (3, 3, 3, 3), (3, 3, 3, 3)),
        (flat({"a": (1,)}, 3), (1, 0, 0), (1, 1, 1), (1, 1, 1)),
        (flat({"a": (7,)}, 4), (2, 2, 2, 1), (2, 2, 2, 2), (2, 2, 2, 2)),
        (chunked({"a": (5, 3), "b": (5,)}, 4), (8, 8, 4, 0), (8, 8, 8, 8), (8, 8, 4, 0)),
        (greedy([{"a": (3,), "b": (5,), "c": (3,)}], 2), (5, 6), (5, 6), (5, 6)),
        (greedy([{"a": (4,)}, {"b": (1,), "c": (2,)}], 3), (4, 2, 1), (4, 2, 1), (4, 2, 1)),
    ],
)
def test_shares_worked_out_by_hand(layout, counts, padded, state):
    assert (layout.counts, layout.padded, layout.state) == (counts, padded, state)


def test_a_slice_of_a_flat_buffer_holds_parts_of_several_parameters():
    layout = flat({"a": (2,), "b": (3,), "c": (4,)}, 2)
    assert layout.owned == ((Range("a", 0, 2), Range("b", 0, 3)), (Range("c", 0, 4),))
    assert flat({"a": (2,), "b": (4,)}, 2).owned[1] == (Range("b", 1, 4),)
    first, last = by_layer(flat({"a": (2,), "b": (3,)}, 3), [["a"], ["b"]])
    assert (first.padded, last.padded) == ((2, 0, 0), (0, 2, 2))


@pytest.mark.parametrize(
    ("owned", "words"),
    [
        (((Range("a", 0, 2),), (Range("a", 3, 4),)), "'a' has no owner for element 2"),
        (((Range("a", 0, 3),), (Range("a", 2, 4),)), "'a' has a second owner, rank 1, for 2"),
        (((Range("a", 0, 2),), ()), "'a' has no owner for element 2"),
        (((Range("a", 0, 5),), ()), r"rank 0 owns \[0, 5\) of 'a'"),
        (((Range("a", 0, 4),), (Range("a", 2, 2),)), r"rank 1 owns \[2, 2\) of 'a'"),
        (((Range("b", 0, 4),), ()), "rank 0 owns part of 'b'"),
    ],
)
def test_a_partition_with_a_gap_an_overlap_or_a_stranger_is_refused(owned, words):
    with pytest.raises(ValueError, match=words):
        Layout({"a": (4,)}, owned, (9, 9), (9, 9))


def test_bad_input_is_refused_in_words():
    good = flat({"a": (4,)}, 2)
    with pytest.raises(ValueError, match="world_size 0"):
        flat({"a": (4,)}, 0)
    with pytest.raises(ValueError, match="'a' is a scalar"):
        chunked({"a": ()}, 2)
    with pytest.raises(ValueError, match="negative dimension"):
        flat({"a": (-1,)}, 2)
    with pytest.raises(ValueError, match="'a' is in two groups"):
        greedy([{"a": (1,)}, {"a": (2,)}], 2)
    with pytest.raises(ValueError, match=r"layouts over \[2, 3\] ranks"):
        join([good, flat({"b": (4,)}, 3)])
    with pytest.raises(ValueError, match="name each of"):
        by_layer(good, [[]])
    with pytest.raises(ValueError, match="rank 1 owns 2 elements but its shard holds 1"):
        Layout(good.shapes, good.owned, (2, 1), (2, 2))
    with pytest.raises(ValueError, match="2, 1 and 2 ranks"):
        Layout(good.shapes, good.owned, (2,), (2, 2))
    with pytest.raises(ValueError, match="0 ranks"):
        Layout({}, (), (), ())
    with pytest.raises(ValueError, match="this layout has"):
        to_shards(good, {"a": np.zeros(5)})
    with pytest.raises(ValueError, match="this layout has"):
        from_shards(good, [np.zeros(3), np.zeros(1)])


def test_squared_norms_of_shards_add_up_and_those_of_replicas_do_not():
    gradient = {"a": np.array([3.0, 1.0, 4.0, 1.0, 5.0]), "b": np.array([[9.0, 2.0]])}
    whole = [np.concatenate([tensor.reshape(-1) for tensor in gradient.values()])]
    for layout in every_layout({"a": (5,), "b": (1, 2)}, 3).values():
        assert squared_norm(to_shards(layout, gradient)) == squared_norm(whole) == 137
    assert squared_norm(whole * 3) == 3 * 137
    assert squared_norm([np.array([0.1]), np.zeros(0)]) == Fraction(0.1) ** 2
