"""Schedules as printed, and that carrying them out, message by message, gives the bits they stand for."""

import numpy as np
import pytest

from lockstep.oracle import gloo
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import evaluate_order, reduction_order
from lockstep.oracle.ring import carry_out, cut
from lockstep.oracle.schedules import ORDER_OF, bytes_sent, schedule, show_schedule

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
            order = reduction_order(str(ORDER_OF[name]), elements, arrays[0].itemsize, world_size)
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


def test_a_schedule_is_printed_with_steps_bytes_and_order() -> None:
    assert show_schedule("gloo", 7, "bfloat16", 3) == GLOO
