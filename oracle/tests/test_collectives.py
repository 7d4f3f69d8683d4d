"""Collectives checked with Fractions, in every order, through one another, and against published volumes."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import chain, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.collectives import (
    OPERATIONS,
    Array,
    all_gather,
    all_gather_tensor,
    all_reduce,
    all_to_all,
    broadcast,
    combine,
    finish,
    gather,
    on_group,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    reduction,
    scatter,
    split,
    volume,
)
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.rounding import round_to_nearest
from lockstep.oracle.tests.examples import examples

EXACT: dict[str, Callable[[list[Fraction]], Any]] = {
    "sum": sum,
    "average": lambda terms: sum(terms, Fraction(0)) / len(terms),
    "min": min,
    "max": max,
    "product": math.prod,
}


def ranks_data(world_size: int, shape: tuple[int, ...] = (4,)) -> list[Array]:
    """Fractions, all different: over ranks, over elements."""
    count = math.prod(shape)
    return [
        np.array([Fraction(7 * rank + 3 * i - 5, 3 + i) for i in range(count)], dtype=object).reshape(shape)
        for rank in range(world_size)
    ]


def same(left: Any, right: Any) -> bool:
    """The same nesting, shapes, dtypes and bits."""
    if left is None or right is None:
        return left is right
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    return bool(left.tolist() == right.tolist() if left.dtype == object else left.tobytes() == right.tobytes())


def random_floats(form: str, shape: int | tuple[int, ...], seed: int) -> Array:
    """Floats whose sums round: significands at random, exponents over a few binades."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * 2.0 ** random.integers(-3, 4, shape)).astype(FORMATS[form].numpy)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("world_size", range(1, 6))
def test_a_reduction_of_fractions_is_the_mathematical_one_in_every_order(op: str, world_size: int) -> None:
    arrays = ranks_data(world_size)
    expected = [EXACT[op]([array[i] for array in arrays]) for i in range(4)]
    for order in permutations(arrays):
        assert reduction(order, op).tolist() == expected
    assert [result.tolist() for result in all_reduce(arrays, op)] == [expected] * world_size


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("op", ["sum", "product"])
def test_each_step_of_a_reduction_is_correctly_rounded(form: str, op: str) -> None:
    left, right = random_floats(form, 300, 1), random_floats(form, 300, 2)
    result = combine(op, left, right)
    assert result.dtype == FORMATS[form].numpy
    for a, b, c in zip(left, right, result, strict=True):
        x, y = Fraction(float(a)), Fraction(float(b))
        assert float(c) == round_to_nearest(x + y if op == "sum" else x * y, form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 6, 7, 64, 255])
def test_the_average_is_the_sum_rounded_after_one_true_division(form: str, world_size: int) -> None:
    total = random_floats(form, 200, world_size)
    for before, after in zip(total, finish("average", total, world_size), strict=True):
        assert float(after) == round_to_nearest(Fraction(float(before)) / world_size, form)


def test_floats_are_added_in_rank_order_in_their_own_dtype() -> None:
    arrays = [np.array([x], np.float32) for x in (2.0**24, 1.0, 1.0, -(2.0**24))]
    assert reduction(arrays).tolist() == [0.0]
    assert reduction(arrays[::-1]).tolist() == [2.0]
    ones = [np.ones(1, FORMATS["bfloat16"].numpy)] * 300
    assert float(reduction(ones)[0]) == 256.0


def test_broadcast_and_reduce_concern_the_root() -> None:
    arrays = ranks_data(4)
    assert same(broadcast(arrays, 2), [arrays[2]] * 4)
    result = reduce(arrays, 1)
    assert result[1].tolist() == [sum(column) for column in zip(*(array.tolist() for array in arrays), strict=True)]
    assert all(same(result[rank], arrays[rank]) for rank in (0, 2, 3))


def test_scatter_undoes_gather_on_every_root() -> None:
    arrays = [np.arange(rank + 2) + 10 * rank for rank in range(4)]
    for root in range(4):
        gathered = gather(arrays, root)
        assert [pieces is None for pieces in gathered] == [rank != root for rank in range(4)]
        assert same(gathered[root], arrays)
        assert same(scatter(gathered, root), arrays)


def test_all_to_all_is_a_transposition() -> None:
    lists = [[np.full(source + 2 * target, 10 * source + target) for target in range(3)] for source in range(3)]
    result = all_to_all(lists)
    assert [[piece.tolist() for piece in row] for row in result] == [
        [[10 * source + target] * (source + 2 * target) for source in range(3)] for target in range(3)
    ]
    assert same(all_to_all(result), lists)


worlds = st.integers(1, 6)
row_counts = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(row_counts, st.sampled_from(OPERATIONS), st.sampled_from([(), (3,), (2, 2)]))
@examples(60)
def test_all_reduce_is_all_gather_after_reduce_scatter(sizes: list[int], op: str, row: tuple[int, ...]) -> None:
    world_size, shape = len(sizes), (sum(sizes), *row)
    exact, floats = ranks_data(world_size, shape), [random_floats("float32", shape, rank) for rank in range(world_size)]
    for arrays in exact, floats:
        shards = reduce_scatter_tensor(arrays, op, sizes)
        assert [len(shard) for shard in shards] == sizes
        assert same(all_gather_tensor(shards), all_reduce(arrays, op))


@given(row_counts, st.sampled_from(OPERATIONS))
@examples(60)
def test_the_list_form_of_reduce_scatter_is_the_tensor_form_cut_up(sizes: list[int], op: str) -> None:
    arrays = ranks_data(len(sizes), (sum(sizes), 2))
    lists = [split(array, sizes) for array in arrays]
    assert same(reduce_scatter(lists, op), reduce_scatter_tensor(arrays, op, sizes))


@given(row_counts, st.sampled_from(OPERATIONS))
@examples(60)
def test_reduce_scatter_is_a_local_reduction_after_all_to_all(sizes: list[int], op: str) -> None:
    lists = [split(array, sizes) for array in ranks_data(len(sizes), (sum(sizes),))]
    assert same(reduce_scatter(lists, op), [reduction(pieces, op) for pieces in all_to_all(lists)])


@given(row_counts)
def test_the_tensor_form_of_all_gather_is_the_list_form_end_to_end(sizes: list[int]) -> None:
    shards = [np.arange(2 * size).reshape(size, 2) + 100 * rank for rank, size in enumerate(sizes)]
    for row, whole in zip(all_gather(shards), all_gather_tensor(shards), strict=True):
        assert same(row, shards)
        assert same(whole, np.concatenate(row))


def test_even_pieces_need_no_sizes() -> None:
    arrays = [np.arange(6) * 10**rank for rank in range(3)]
    assert [piece.tolist() for piece in reduce_scatter_tensor(arrays)] == [[0, 111], [222, 333], [444, 555]]


@pytest.mark.parametrize("form", FORMATS)
def test_scalars_keep_their_shape_and_dtype(form: str) -> None:
    arrays = [np.asarray(rank + 1, FORMATS[form].numpy) for rank in range(3)]
    for op, expected in zip(OPERATIONS, (6, 2, 1, 3, 6), strict=True):
        for result in all_reduce(arrays, op):
            assert (result.shape, result.dtype, float(result)) == ((), FORMATS[form].numpy, expected)


@pytest.mark.parametrize("world_size", [1, 3])
def test_results_share_no_memory(world_size: int) -> None:
    arrays = [np.arange(6.0) + rank for rank in range(world_size)]
    lists = [[np.arange(2.0) + rank for _ in range(world_size)] for rank in range(world_size)]
    for inputs, results in [
        (arrays, broadcast(arrays, 0)),
        (arrays, reduce(arrays, 0)),
        (arrays, all_reduce(arrays)),
        (arrays, reduce_scatter_tensor(arrays)),
        (arrays, [*chain.from_iterable(all_gather(arrays))]),
        (arrays, all_gather_tensor(arrays)),
        (arrays, gather(arrays, 0)[0] or []),
        ([*chain.from_iterable(lists)], reduce_scatter(lists)),
        ([*chain.from_iterable(lists)], scatter(lists, 0)),
        ([*chain.from_iterable(lists)], [*chain.from_iterable(all_to_all(lists))]),
    ]:
        for index, result in enumerate(results):
            assert not any(np.shares_memory(result, other) for other in [*inputs, *results[:index]])


def test_a_subgroup_reduces_among_its_members_and_leaves_the_others_untouched() -> None:
    arrays = [np.array([10**rank]) for rank in range(5)]
    result = on_group(all_reduce, arrays, (1, 3))
    assert [int(array[0]) for array in result] == [1, 1010, 100, 1010, 10000]
    assert all(result[rank] is arrays[rank] for rank in (0, 2, 4))
    assert [int(array[0]) for array in arrays] == [1, 10, 100, 1000, 10000]


def test_the_rank_in_a_group_is_the_place_in_it() -> None:
    arrays = [np.array([10**rank]) for rank in range(4)]
    result = on_group(lambda members: broadcast(members, 0), arrays, (3, 1))
    assert [int(array[0]) for array in result] == [1, 1000, 100, 1000]
    gathered = on_group(all_gather_tensor, arrays, (3, 1))
    assert [array.tolist() for array in gathered] == [[1], [1000, 10], [100], [1000, 10]]


def test_shards_reduced_over_replicas_gather_to_the_all_reduce_of_the_world() -> None:
    arrays = ranks_data(6, (6,))
    shards = arrays
    shard_groups, replica_groups = ((0, 1, 2), (3, 4, 5)), ((0, 3), (1, 4), (2, 5))
    for shard_group in shard_groups:
        shards = on_group(reduce_scatter_tensor, shards, shard_group)
    for replica_group in replica_groups:
        shards = on_group(all_reduce, shards, replica_group)
    for shard_group in shard_groups:
        shards = on_group(all_gather_tensor, shards, shard_group)
    assert same(shards, all_reduce(arrays))


def test_volumes_are_the_published_ones() -> None:
    assert volume("broadcast", 1000, 4) == 1000
    for collective in ("reduce", "scatter", "gather", "reduce_scatter", "all_gather"):
        assert volume(collective, 1000, 4) == 750
    assert volume("all_reduce", 1000, 4) == 1500
    assert volume("all_reduce", 10, 3) == Fraction(40, 3)
    # bf16 gradients of 7 B parameters: about 28 GB per rank and step on many ranks.
    assert 27_900_000_000 < 2 * volume("all_reduce", 7 * 10**9, 1024) < 28_000_000_000


@given(st.integers(0, 10**6), st.integers(1, 600))
def test_an_all_reduce_moves_what_its_two_halves_move(elements: int, world_size: int) -> None:
    halves = volume("reduce_scatter", elements, world_size) + volume("all_gather", elements, world_size)
    assert volume("all_reduce", elements, world_size) == halves


def test_one_rank_moves_nothing() -> None:
    for collective in ("broadcast", "reduce", "scatter", "gather", "reduce_scatter", "all_gather", "all_reduce"):
        assert volume(collective, 1000, 1) == 0


three = [np.zeros(3), np.ones(3)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: all_reduce([]), "no arrays"),
        (lambda: all_reduce([np.zeros(3), np.zeros(4)]), r"rank 1 has float64\[4\] where rank 0 has float64\[3\]"),
        (lambda: all_reduce([np.zeros(3), np.zeros(3, np.float32)]), r"rank 1 has float32\[3\]"),
        (lambda: all_reduce(three, "mean"), "unknown reduction 'mean'"),
        (lambda: all_reduce(three[:1], "mean"), "unknown reduction 'mean'"),
        (lambda: all_reduce([np.arange(3), np.arange(3)], "average"), "the average of int64"),
        (lambda: broadcast(three, 2), "root 2 is no rank of a group of 2"),
        (lambda: reduce(three, -1), "root -1"),
        (lambda: gather(three, 5), "root 5"),
        (lambda: scatter([None, three], 0), "root 0 gives no pieces to 2 ranks"),
        (lambda: scatter([three[:1], None], 0), "root 0 gives 1 pieces to 2 ranks"),
        (lambda: all_to_all([three, three[:1]]), "rank 1 gives 1 pieces to 2 ranks"),
        (lambda: reduce_scatter([three[:1], three]), "rank 0 gives 1 pieces"),
        (lambda: reduce_scatter_tensor(three), r"shape \(3,\) does not split evenly over 2 ranks"),
        (lambda: reduce_scatter_tensor(three, sizes=[1, 1]), r"\[1, 1\]"),
        (lambda: reduce_scatter_tensor(three, sizes=[4, -1]), r"\[4, -1\]"),
        (lambda: reduce_scatter_tensor(three, sizes=[3]), "1 sizes for 2 ranks"),
        (lambda: all_gather_tensor([np.zeros((2, 3)), np.zeros((2, 4))]), r"rank 1 has float64\[2, 4\]"),
        (lambda: all_gather_tensor([np.zeros(()), np.zeros(())]), "need a dimension"),
        (lambda: on_group(all_reduce, three, (0, 0)), r"group \(0, 0\)"),
        (lambda: on_group(all_reduce, three, (0, 2)), r"group \(0, 2\)"),
        (lambda: volume("all_reduce", -1, 2), "-1 elements"),
        (lambda: volume("all_reduce", 1, 0), "on 0 ranks"),
        (lambda: volume("barrier", 1, 1), "no volume known for 'barrier'"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
