"""Schedules as printed, and that carrying them out, message by message, gives the bits they stand for."""

from fractions import Fraction

import numpy as np
import pytest

from lockstep.oracle import gloo
from lockstep.oracle.collectives import all_reduce
from lockstep.oracle.cost import hierarchical_time
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.hierarchical import BETWEEN, hierarchical_all_reduce
from lockstep.oracle.reduction_order import check_order, evaluate_order
from lockstep.oracle.ring import carry_out, cut
from lockstep.oracle.schedules import bytes_sent, schedule, show_schedule, summation_order

WORLDS = range(1, 9)
LENGTHS = (0, 1, 2, 3, 5, 7, 13, 24, 25)

GLOO = """gloo all-reduce of 7 bfloat16 elements on 3 ranks
chunks: (0) [0,4)  (1) [4,7)  (2) [7,7)
reduce-scatter: the receiver adds
  step 0:  r0 -(1)-> r2   r1 -(2)-> r0   r2 -(0)-> r1
  step 1:  r0 -(2)-> r2   r1 -(0)-> r0   r2 -(1)-> r1
all-gather: the receiver overwrites
  step 0:  r0 -(0)-> r2   r1 -(1)-> r0   r2 -(2)-> r1
  step 1:  r0 -(1)-> r2   r1 -(2)-> r0   r2 -(0)-> r1
messages and bytes sent:
  r0  4 messages, 20 bytes
  r1  4 messages, 14 bytes
  r2  4 messages, 22 bytes
order of summation:
  [0,4) ((r2+r1)+r0)
  [4,7) ((r0+r2)+r1)"""

HIERARCHICAL = """hierarchical all-reduce of 7 float32 elements on 4 ranks, 2 per node
chunks: (0) [0,4)  (1) [4,7)
pieces of chunks, between nodes: (0.0) [0,2)  (0.1) [2,4)  (1.0) [4,6)  (1.1) [6,7)
reduce-scatter in nodes: the receiver adds
  step 0:  r0 -(0)-> r1   r1 -(1)-> r0   r2 -(0)-> r3   r3 -(1)-> r2
reduce-scatter between nodes: the receiver adds
  step 0:  r0 -(1.0)-> r2   r1 -(0.0)-> r3   r2 -(1.1)-> r0   r3 -(0.1)-> r1
all-gather between nodes: the receiver overwrites
  step 0:  r0 -(1.1)-> r2   r1 -(0.1)-> r3   r2 -(1.0)-> r0   r3 -(0.0)-> r1
all-gather in nodes: the receiver overwrites
  step 0:  r0 -(1)-> r1   r1 -(0)-> r0   r2 -(1)-> r3   r3 -(0)-> r2
messages and bytes sent:
  r0  4 messages, 40 bytes, 12 of them to another node
  r1  4 messages, 44 bytes, 16 of them to another node
  r2  4 messages, 40 bytes, 12 of them to another node
  r3  4 messages, 44 bytes, 16 of them to another node
order of summation:
  [0,2) ((r0+r1)+(r2+r3))
  [2,4) ((r2+r3)+(r0+r1))
  [4,6) ((r1+r0)+(r3+r2))
  [6,7) ((r3+r2)+(r1+r0))"""


def carried_out(name: str, arrays: list[np.ndarray]) -> list[dict[int, np.ndarray]]:
    """What each rank holds of each chunk when all messages of an all-reduce have arrived."""
    messages, sizes = schedule(name, arrays[0].size, arrays[0].itemsize, len(arrays))
    held = [cut(array, sizes) for array in arrays]
    carry_out([m for m in messages if m.phase in ("reduce-scatter", "reduce")], held, "sum")
    carry_out([m for m in messages if m.phase in ("all-gather", "broadcast")], held, None)
    return held


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["ring", "tree", "gloo"])
def test_messages_carried_out_give_the_bits_of_the_order_that_is_printed(name: str, form: str) -> None:
    for world_size in WORLDS:
        for elements in LENGTHS:
            random = np.random.default_rng(elements)
            arrays = [random.standard_normal(elements).astype(FORMATS[form].numpy) for _ in range(world_size)]
            order = summation_order(name, elements, arrays[0].itemsize, world_size)
            assert order is not None
            expected = evaluate_order(order, arrays)
            if name == "gloo":
                assert expected.tobytes() == gloo.all_reduce(arrays).tobytes()
            for mine in carried_out(name, arrays):
                assert np.concatenate([mine[chunk] for chunk in sorted(mine)]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("world_size", WORLDS)
def test_gloo_only_ever_sends_to_the_rank_before_and_each_rank_the_same_number(world_size: int) -> None:
    messages = gloo.all_reduce_schedule(13, 4, world_size)
    assert all(message.receiver == (message.sender - 1) % world_size for message in messages)
    for rank in range(world_size):
        assert sum(message.sender == rank for message in messages) == 2 * (world_size - 1)


def test_where_the_chunks_are_even_the_bytes_are_those_of_the_published_volume() -> None:
    for name in ("ring", "gloo"):
        for world_size in WORLDS:
            elements = 2 * world_size * 12
            messages, _ = schedule(name, elements, 2, world_size)
            assert (
                bytes_sent(messages, 2, world_size) == [2 * (world_size - 1) * elements * 2 // world_size] * world_size
            )


NODES = [(1, 1), (1, 3), (2, 2), (2, 3), (3, 2), (4, 1), (4, 2)]  # ranks per node, nodes


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("node", "nodes"), NODES)
def test_a_hierarchical_all_reduce_gives_the_bits_of_the_order_that_is_printed(
    form: str, node: int, nodes: int
) -> None:
    for elements in LENGTHS:
        random = np.random.default_rng(elements)
        arrays = [random.standard_normal(elements).astype(FORMATS[form].numpy) for _ in range(node * nodes)]
        order = summation_order("hierarchical", elements, arrays[0].itemsize, node * nodes, node)
        assert order is not None
        check_order(order, elements, node * nodes)
        expected = evaluate_order(order, arrays)
        for result in hierarchical_all_reduce(arrays, node).results:
            assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", ["sum", "average", "min", "max", "product"])
def test_a_hierarchical_all_reduce_means_what_an_all_reduce_means(op: str) -> None:
    arrays = [np.arange(1, 12, dtype=np.float64).reshape(11, 1) * 2.0**rank for rank in range(4)]  # nothing rounds
    for result in hierarchical_all_reduce(arrays, 2, op).results:
        np.testing.assert_array_equal(result, all_reduce(arrays, op)[0], strict=True)


@pytest.mark.parametrize(("node", "nodes"), NODES)
def test_the_messages_of_a_hierarchical_all_reduce_take_the_published_time(node: int, nodes: int) -> None:
    size = 4 * node * nodes * 12
    messages, _ = schedule("hierarchical", size // 4, 4, node * nodes, node)
    total = Fraction(0)
    for phase in dict.fromkeys(message.phase for message in messages):
        alpha, bandwidth = (7, 5) if phase.endswith(BETWEEN) else (3, 11)
        of_phase = [message for message in messages if message.phase == phase]
        assert all((m.sender // node != m.receiver // node) == phase.endswith(BETWEEN) for m in of_phase)
        for step in range(1 + max(message.step for message in of_phase)):
            sent = bytes_sent([message for message in of_phase if message.step == step], 4, node * nodes)
            assert len(set(sent)) == 1  # every rank sends, and as much as any other
            total += alpha + Fraction(sent[0], bandwidth)
    assert total == hierarchical_time(size, node, nodes, (3, 11), (7, 5))


def test_a_rest_of_ranks_makes_no_node() -> None:
    with pytest.raises(ValueError, match="6 ranks are not whole nodes of 4: give a multiple of it"):
        schedule("hierarchical", 8, 4, 6, 4)
    with pytest.raises(ValueError, match="node 0: give at least 1"):
        schedule("hierarchical", 8, 4, 6, 0)


def test_a_hierarchical_schedule_is_printed_with_its_pieces_and_what_leaves_a_node() -> None:
    assert show_schedule("hierarchical", 7, "float32", 4, 2) == HIERARCHICAL


def test_a_schedule_is_printed_with_steps_bytes_and_order() -> None:
    assert show_schedule("gloo", 7, "bfloat16", 3) == GLOO
