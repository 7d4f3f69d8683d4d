"""What the strategies of P14's calls, and of when collectives read and write, can produce, and what they shrink to."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import find

from lockstep.oracle.formats import FORMATS
from lockstep.properties.claims import COLLECTIVES, Claims
from lockstep.properties.strategies.calls import calls, calls_of_any
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.timing import ASYNCHRONIES
from lockstep.properties.tests.test_shrinking import SHRINKING
from lockstep.properties.wrapper_call import KINDS, MOST_RANKS, SECOND, Call, inputs
from lockstep.worlds.contract import Asynchrony

ALL = Claims(collectives=COLLECTIVES, sixteen_bits=True, integers=True, empty_parameters=True)


@cache
def drawn() -> tuple[list[Call], list[Asynchrony]]:
    """Always the same."""
    return sample(calls_of_any(ALL), 500), sample(ASYNCHRONIES, 200)


def can_call(holds: Callable[[Call], bool]) -> Callable[[], None]:
    """A test that some call is like that."""

    def test() -> None:
        assert any(map(holds, drawn()[0]))

    return test


def can_choose(holds: Callable[[Asynchrony], bool]) -> Callable[[], None]:
    """A test that collectives read and write like that in some example."""

    def test() -> None:
        assert any(map(holds, drawn()[1]))

    return test


def leaves_out_rank_0(call: Call) -> bool:
    """As a group of several ranks."""
    return len(call.group) > 1 and 0 not in call.group


def has_gaps(call: Call) -> bool:
    """True if ranks between two members are in no group."""
    return len(call.group) <= call.group[-1] - call.group[0]


test_can_call_all_reduce_for_a_sum = can_call(lambda c: (c.operation, c.reduction) == ("all_reduce", "sum"))
test_can_call_all_reduce_for_an_average = can_call(lambda c: (c.operation, c.reduction) == ("all_reduce", "average"))
test_can_call_reduce_scatter_for_a_sum = can_call(lambda c: (c.operation, c.reduction) == ("reduce_scatter", "sum"))
test_can_call_reduce_scatter_for_an_average = can_call(
    lambda c: (c.operation, c.reduction) == ("reduce_scatter", "average")
)
test_can_call_all_gather = can_call(lambda c: c.operation == "all_gather")
test_can_call_broadcast = can_call(lambda c: c.operation == "broadcast")
test_can_call_with_1_rank = can_call(lambda c: c.world_size == 1)
test_can_call_with_2_ranks = can_call(lambda c: c.world_size == 2)
test_can_call_with_3_ranks = can_call(lambda c: c.world_size == 3)
test_can_call_with_4_ranks = can_call(lambda c: c.world_size == 4)
test_can_call_with_5_ranks = can_call(lambda c: c.world_size == 5)
test_can_call_all_ranks = can_call(lambda c: c.world_size == len(c.group) == 5)
test_can_call_a_group_of_one_rank_of_several = can_call(lambda c: len(c.group) == 1 < c.world_size)
test_can_call_a_group_without_rank_0 = can_call(leaves_out_rank_0)
test_can_call_a_group_that_leaves_out_a_rank_in_between = can_call(has_gaps)
test_can_call_a_contiguous_tensor = can_call(lambda c: c.layout == "contiguous")
test_can_call_a_transposed_tensor = can_call(lambda c: c.layout == "transposed" and min(c.shape[:2]) > 1 < c.dimensions)
test_can_call_every_other_column_of_a_tensor = can_call(lambda c: c.layout == "columns" and c.columns > 1)
test_can_call_a_tensor_of_1_dimension = can_call(lambda c: c.dimensions == 1)
test_can_call_a_tensor_of_2_dimensions = can_call(lambda c: c.dimensions == 2)
test_can_call_a_tensor_of_3_dimensions = can_call(lambda c: c.dimensions == 3)
test_can_call_float32 = can_call(lambda c: c.dtype == "float32")
test_can_call_float64 = can_call(lambda c: c.dtype == "float64")
test_can_call_bfloat16 = can_call(lambda c: c.dtype == "bfloat16")
test_can_call_float16 = can_call(lambda c: c.dtype == "float16")
test_can_call_int64 = can_call(lambda c: c.dtype == "int64")
test_can_call_a_tensor_of_no_dimensions = can_call(lambda c: c.dimensions == 0)
test_can_call_a_tensor_without_rows = can_call(lambda c: c.rows == 0 < c.dimensions)
test_can_call_a_tensor_without_columns = can_call(lambda c: c.columns == 0 < c.rows and c.dimensions > 1)
test_can_call_a_root_that_is_rank_0 = can_call(lambda c: c.operation == "broadcast" and c.root == 0 < len(c.group) - 1)
test_can_call_a_root_that_is_another_rank = can_call(lambda c: c.root > 0)
test_can_call_a_root_that_has_another_number_in_its_group = can_call(
    lambda c: c.operation == "broadcast" and len(c.group) > 1 and c.group.index(c.root) != c.root
)

test_can_choose_to_read_when_launched = can_choose(lambda a: a.reads == "launch")
test_can_choose_to_read_when_all_have_come = can_choose(lambda a: a.reads == "completion")
test_can_choose_to_read_at_a_drawn_moment = can_choose(lambda a: a.reads == "drawn")
test_can_choose_to_write_when_all_have_come = can_choose(lambda a: a.writes == "completion")
test_can_choose_to_write_when_waited_for = can_choose(lambda a: a.writes == "wait")
test_can_choose_to_write_at_a_drawn_moment = can_choose(lambda a: a.writes == "drawn")
test_can_choose_to_read_early_and_write_late = can_choose(lambda a: (a.reads, a.writes) == ("launch", "wait"))
test_can_choose_to_read_and_write_when_all_have_come = can_choose(lambda a: a.reads == a.writes == "completion")
# What is drawn for the first collective: when it reads, and then when it writes (`worlds.contract.Asynchrony`).
test_can_choose_to_read_the_first_when_all_have_come = can_choose(lambda a: bool(a.draws) and a.draws[0] % 2 == 1)
test_can_choose_to_read_the_first_when_launched = can_choose(lambda a: bool(a.draws) and a.draws[0] % 2 == 0)
test_can_choose_to_write_the_first_when_waited_for = can_choose(lambda a: a.draws[1:2] == (0,))
test_can_choose_to_write_the_first_when_all_have_come = can_choose(lambda a: a.draws[1:2] == (1,))
test_can_choose_to_write_the_first_in_between = can_choose(lambda a: a.draws[1:2] > (1,))
test_can_choose_otherwise_for_other_collectives = can_choose(lambda a: len({*a.draws[::2]}) > 1 < len({*a.draws[1::2]}))

SMALLEST = Call("all_reduce", 2, (0, 1))
SHRUNK: dict[str, tuple[Callable[[Call], bool], Call]] = {
    "anything": (lambda c: True, SMALLEST),
    "an average": (lambda c: c.reduction == "average", replace(SMALLEST, reduction="average")),
    "reduce_scatter": (lambda c: c.operation == "reduce_scatter", replace(SMALLEST, operation="reduce_scatter")),
    "all_gather": (lambda c: c.operation == "all_gather", replace(SMALLEST, operation="all_gather")),
    "broadcast": (lambda c: c.operation == "broadcast", replace(SMALLEST, operation="broadcast")),
    "another root": (
        lambda c: c.operation == "broadcast" and c.root > c.group[0],
        replace(SMALLEST, operation="broadcast", root=1),
    ),
    "no rank 0": (leaves_out_rank_0, replace(SMALLEST, world_size=3, group=(1, 2))),
    "a gap": (has_gaps, replace(SMALLEST, world_size=3, group=(0, 2))),
    "columns": (lambda c: c.layout == "columns", replace(SMALLEST, layout="columns")),
    "float64": (lambda c: c.dtype == "float64", replace(SMALLEST, dtype="float64")),
    "int64": (lambda c: c.dtype == "int64", replace(SMALLEST, dtype="int64")),
    "no dimensions": (lambda c: c.dimensions == 0, replace(SMALLEST, dimensions=0)),
    "no elements": (lambda c: 0 in c.shape, replace(SMALLEST, columns=0)),
}


@pytest.mark.parametrize("what", SHRUNK)
def test_shrinks_to_the_smallest_call(what: str) -> None:
    """In one of three searches, since from some beginnings shrinking ends at another call with no smaller beside it."""
    holds, smallest = SHRUNK[what]
    found = (find(calls_of_any(ALL), holds, settings=SHRINKING, random=Random(seed)) for seed in range(3))
    assert any(each == smallest for each in found)


def test_what_is_not_claimed_is_not_given() -> None:
    plain = sample(calls_of_any(Claims(collectives=COLLECTIVES, scalars=False, float64=False)), 200)
    assert {call.dtype for call in plain} == {"float32"}
    assert not any(0 in call.shape or call.dimensions == 0 for call in plain)
    assert "int64" not in {call.dtype for call in sample(calls(ALL), 200)}  # whatever goes backward


@pytest.mark.parametrize("dtype", KINDS)
def test_sums_of_16_bits_are_exact(dtype: str) -> None:
    """Over as many ranks as there may be, of numbers as large as they are."""
    call = Call("all_reduce", MOST_RANKS, tuple(range(MOST_RANKS)), 5, 7, dtype=dtype)
    assert max(float(each.max()) for each in inputs(call, 1, call.shape)) == KINDS[dtype] * MOST_RANKS
    assert KINDS[dtype] * MOST_RANKS**2 <= 2 ** FORMATS[dtype].precision


@pytest.mark.parametrize("dtype", ["float32", *KINDS])
def test_no_two_ranks_are_given_the_same_nor_in_two_calls(dtype: str) -> None:
    for call in sample(calls(ALL), 200):
        if 0 not in call.shape:
            first, second = (inputs(replace(call, dtype=dtype), start, call.shape) for start in (1, SECOND))
            assert len({each.tobytes() for each in first}) == call.world_size
            assert all(one.tobytes() != two.tobytes() for one, two in zip(first, second, strict=True))


MOMENTS: dict[str, tuple[Callable[[Any], bool], Asynchrony]] = {
    "anything": (lambda a: True, Asynchrony("launch", "wait")),
    "reading late": (lambda a: a.reads == "completion", Asynchrony("completion", "wait")),
    "writing early": (lambda a: a.writes == "completion", Asynchrony("launch", "completion")),
    "drawn": (lambda a: a.reads == a.writes == "drawn", Asynchrony("drawn", "drawn", (0,))),
}


@pytest.mark.parametrize("what", MOMENTS)
def test_shrinks_to_the_plainest_moments(what: str) -> None:
    holds, plainest = MOMENTS[what]
    assert find(ASYNCHRONIES, holds, settings=SHRINKING) == plainest
