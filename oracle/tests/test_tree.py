"""The tree checked for results, for its order, and for messages: none leaves before what it carries has arrived."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from lockstep.oracle.collectives import OPERATIONS, Array, all_reduce, finish, volume
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import binary_tree, evaluate
from lockstep.oracle.tree import broadcast_schedule, level, parent, reduce_schedule, tree_all_reduce

WORLDS = range(1, 18)


def integers(world_size: int, elements: int) -> list[Array]:
    return [np.arange(1, 1 + elements) + 30 * rank for rank in range(world_size)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_every_rank_ends_with_the_reduction_whatever_the_length(world_size: int) -> None:
    for elements in (0, 1, 2, 7):
        for op in ("sum", "min", "max"):
            arrays = integers(world_size, elements)
            results = tree_all_reduce(arrays, op).results
            assert [result.tolist() for result in results] == [all_reduce(arrays, op)[0].tolist()] * world_size


def test_shape_and_dtype_survive() -> None:
    for shape in ((), (2, 3), (0, 4)):
        for op in OPERATIONS:
            for result in tree_all_reduce([np.full(shape, rank + 1, np.float16) for rank in range(3)], op).results:
                assert result.shape == shape
                assert result.dtype == np.float16


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_a_parent_adds_its_left_subtree_and_then_its_right(form: str, world_size: int) -> None:
    random = np.random.default_rng(world_size)
    arrays = [random.standard_normal(50).astype(FORMATS[form].numpy) for _ in range(world_size)]
    expected = evaluate(binary_tree(world_size), arrays)
    assert [result.tobytes() for result in tree_all_reduce(arrays).results] == [expected.tobytes()] * world_size
    mean = finish("average", expected, world_size)
    assert [result.tobytes() for result in tree_all_reduce(arrays, "average").results] == [mean.tobytes()] * world_size


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_rank_sends_up_only_after_its_children_and_down_only_after_its_parent(world_size: int) -> None:
    up, down = reduce_schedule(3, world_size), broadcast_schedule(3, world_size)
    sent_up = {m.sender: m.step for m in up}
    arrived = {m.receiver: m.step for m in down}
    assert all(sent_up[m.sender] < sent_up[m.receiver] for m in up if m.receiver != 0)
    assert all(arrived[m.sender] < m.step for m in down if m.sender != 0)


@pytest.mark.parametrize("world_size", WORLDS)
def test_messages_steps_and_volume(world_size: int) -> None:
    elements = 5
    messages = tree_all_reduce(integers(world_size, elements)).messages
    up, down = reduce_schedule(elements, world_size), broadcast_schedule(elements, world_size)
    assert messages == up + down
    assert sorted(m.sender for m in up) == sorted(m.receiver for m in down) == list(range(1, world_size))
    assert sum(m.elements for m in messages) == world_size * volume("all_reduce", elements, world_size)
    assert sum(m.elements for m in up) == world_size * volume("reduce", elements, world_size)
    assert all(m.elements == volume("broadcast", elements, world_size) for m in down)
    steps = {(m.phase, m.step) for m in messages}
    assert len(steps) == 2 * math.floor(math.log2(world_size))


def test_every_rank_is_its_parents_child() -> None:
    for rank in range(1, 200):
        assert rank in (2 * parent(rank) + 1, 2 * parent(rank) + 2)
        assert level(rank) == level(parent(rank)) + 1
    assert level(0) == 0


def test_a_parent_of_two_moves_three_times_what_a_leaf_moves() -> None:
    messages = tree_all_reduce(integers(7, 10)).messages
    sent = [sum(m.elements for m in messages if m.sender == rank) for rank in range(7)]
    received = [sum(m.elements for m in messages if m.receiver == rank) for rank in range(7)]
    assert sent == received == [20, 30, 30, 10, 10, 10, 10]


def test_results_share_no_memory() -> None:
    arrays = integers(4, 3)
    results = tree_all_reduce(arrays).results
    for index, result in enumerate(results):
        assert not any(np.shares_memory(result, other) for other in [*arrays, *results[:index]])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: parent(0), "rank 0 has no parent"),
        (lambda: level(-1), "rank -1"),
        (lambda: reduce_schedule(3, 0), "3 elements on 0 ranks"),
        (lambda: tree_all_reduce([]), "no arrays"),
        (lambda: tree_all_reduce([np.zeros(2), np.zeros(3)]), "rank 1 has"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
