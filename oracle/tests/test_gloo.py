"""gloo's rule checked against its source's own way of cutting segments, one element at a time, and by identities."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle import collectives, gloo
from lockstep.oracle.collectives import Array
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import evaluate_order, reduction_order
from lockstep.oracle.rounding import round_to_nearest
from lockstep.oracle.tests.examples import examples

WORLDS = range(1, 9)


def floats(world_size: int, elements: int, form: str, seed: int = 0) -> list[Array]:
    """Floats whose sums round, different on every rank."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((world_size, elements)) * 2.0 ** random.integers(-4, 5, (world_size, elements))
    return list(values.astype(FORMATS[form].numpy))


def segment_bounds(elements: int, element_bytes: int, world_size: int) -> list[tuple[int, int]]:
    """The layout as gloo computes it, in bytes and segments: an even number of segments per rank is cut first."""
    total = elements * element_bytes
    per_rank = 2
    while per_rank * world_size * 2**20 < total:
        per_rank += 1
    segments = per_rank * world_size
    segment = 0
    while segment * segments < total:
        segment += element_bytes
    owned: list[list[tuple[int, int]]] = [[] for _ in range(world_size)]
    for index in range(segments):
        owned[index // per_rank].append((min(index * segment, total), min((index + 1) * segment, total)))
    return [(pieces[0][0] // element_bytes, pieces[-1][1] // element_bytes) for pieces in owned]


@given(st.integers(0, 3000), st.sampled_from([1, 2, 4, 8]), st.integers(1, 20))
@examples(200)
def test_chunks_are_those_of_the_segments(elements: int, element_bytes: int, world_size: int) -> None:
    assert gloo.chunk_bounds(elements, element_bytes, world_size) == segment_bounds(elements, element_bytes, world_size)


@pytest.mark.parametrize("element_bytes", [4, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_large_tensors_have_more_segments_than_two_per_rank(element_bytes: int, world_size: int) -> None:
    edge = 2 * world_size * 2**20 // element_bytes
    for elements in (edge - 1, edge, edge + 1, edge + 12345):
        bounds = gloo.chunk_bounds(elements, element_bytes, world_size)
        assert bounds == segment_bounds(elements, element_bytes, world_size)


def test_chunks_of_known_tensors() -> None:
    assert gloo.chunk_bounds(13, 4, 4) == [(0, 4), (4, 8), (8, 12), (12, 13)]
    assert gloo.chunk_bounds(40, 4, 8) == [(0, 6), (6, 12), (12, 18), (18, 24), (24, 30), (30, 36), (36, 40), (40, 40)]
    assert gloo.chunk_bounds(1, 8, 3) == [(0, 1), (1, 1), (1, 1)]


def test_chunk_c_walks_down_the_ranks_and_is_complete_at_rank_c() -> None:
    assert gloo.accumulation_order(0, 4) == (3, 2, 1, 0)
    assert gloo.accumulation_order(2, 4) == (1, 0, 3, 2)
    for world_size in WORLDS:
        for chunk in range(world_size):
            order = gloo.accumulation_order(chunk, world_size)
            assert order[-1] == chunk
            assert sorted(order) == list(range(world_size))
            assert all((a - b) % world_size == 1 for a, b in pairwise(order))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_element_is_added_hop_by_hop_in_the_wires_format(form: str, world_size: int) -> None:
    arrays = floats(world_size, 21, form)
    result = gloo.all_reduce(arrays)
    length = gloo.chunk_bounds(21, FORMATS[form].bytes, world_size)[0][1]
    for element in range(21):
        chunk = element // length
        total = Fraction(0)
        for hop in range(1, world_size + 1):
            total = Fraction(round_to_nearest(total + Fraction(float(arrays[chunk - hop][element])), form))
        assert Fraction(float(result[element])) == total


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("op", ["sum", "product", "min", "max"])
@pytest.mark.parametrize("world_size", WORLDS)
def test_the_all_reduce_is_the_order_called_gloo_evaluated(form: str, op: str, world_size: int) -> None:
    for elements in (0, 1, 5, 40, 257):
        arrays = floats(world_size, elements, form, elements)
        order = reduction_order("gloo", elements, FORMATS[form].bytes, world_size)
        assert gloo.all_reduce(arrays, op).tobytes() == evaluate_order(order, arrays, op).tobytes()


@pytest.mark.parametrize("form", FORMATS)
def test_the_average_is_the_sum_divided(form: str) -> None:
    for world_size in WORLDS:
        arrays = floats(world_size, 50, form)
        quotients = [Fraction(float(x)) / world_size for x in gloo.all_reduce(arrays)]
        average = gloo.all_reduce(arrays, "average")
        assert average.dtype == FORMATS[form].numpy
        assert [float(x) for x in average] == [round_to_nearest(x, form) for x in quotients]


@pytest.mark.parametrize("op", collectives.OPERATIONS)
def test_on_exact_data_gloo_computes_what_the_collectives_mean(op: str) -> None:
    for world_size in (1, 2, 4, 8):
        arrays = [np.arange(1.0, 17.0).reshape(8, 2) * (rank - 3) for rank in range(world_size)]
        expected = collectives.all_reduce(arrays, op)[0].tolist()
        assert gloo.all_reduce(arrays, op).tolist() == expected
        assert gloo.reduce(arrays, world_size - 1, op).tolist() == expected
        shards = [shard.tolist() for shard in collectives.reduce_scatter_tensor(arrays, op)]
        assert [shard.tolist() for shard in gloo.reduce_scatter_tensor(arrays, op)] == shards
        lists = [collectives.split(array, [8 // world_size] * world_size) for array in arrays]
        assert [shard.tolist() for shard in gloo.reduce_scatter(lists, op)] == shards


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_reduce_scatter_then_all_gather_gives_the_bits_of_the_all_reduce(form: str, world_size: int) -> None:
    arrays = floats(world_size, 6 * world_size, form)
    for op in ("sum", "average"):
        gathered = np.concatenate(gloo.reduce_scatter_tensor(arrays, op))
        assert gathered.tobytes() == gloo.all_reduce(arrays, op).tobytes()


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_two_forms_of_reduce_scatter_differ_from_three_ranks_on(world_size: int) -> None:
    arrays = floats(world_size, 60 * world_size, "float32")
    lists = [collectives.split(array, [60] * world_size) for array in arrays]
    same = np.concatenate(gloo.reduce_scatter(lists)).tobytes() == gloo.all_reduce(arrays).tobytes()
    assert same == (world_size < 3)


def test_pieces_of_the_list_form_may_differ_in_size() -> None:
    sizes = [0, 5, 3]
    lists = [collectives.split(array, sizes) for array in floats(3, 8, "float32")]
    for rank, shard in enumerate(gloo.reduce_scatter(lists)):
        assert shard.tobytes() == gloo.all_reduce([pieces[rank] for pieces in lists]).tobytes()


def test_tensors_that_are_coalesced_are_reduced_as_one() -> None:
    shapes = [(3,), (0, 2), (2, 20), ()]
    arrays = floats(5, 44, "float32")
    lists = [
        [part.reshape(shape) for part, shape in zip(collectives.split(array, [3, 0, 40, 1]), shapes, strict=True)]
        for array in arrays
    ]
    results = gloo.all_reduce_coalesced(lists)
    assert [result.shape for result in results] == shapes
    whole = np.concatenate([result.reshape(-1) for result in results])
    assert whole.tobytes() == gloo.all_reduce(arrays).tobytes()
    alone = np.concatenate([gloo.all_reduce(list(tensors)).reshape(-1) for tensors in zip(*lists, strict=True)])
    assert whole.tobytes() != alone.tobytes()


@pytest.mark.parametrize("form", FORMATS)
def test_of_two_zeros_the_local_one_stays_and_a_nan_stays_only_where_it_is_local(form: str) -> None:
    def number(x: float) -> Array:
        return np.array([x], FORMATS[form].numpy)

    for op in ("min", "max"):
        assert str(gloo.hop(op, number(0.0), number(-0.0))[0]) == str(number(0.0)[0])
        assert str(gloo.hop(op, number(-0.0), number(0.0))[0]) == str(number(-0.0)[0])
        assert float(gloo.hop(op, number(1.0), number(np.nan))[0]) == 1.0
        assert np.isnan(float(gloo.hop(op, number(np.nan), number(1.0))[0]))


def test_the_result_shares_no_memory_and_keeps_shape_and_dtype() -> None:
    for world_size in (1, 3):
        arrays = [array.reshape(2, 3) for array in floats(world_size, 6, "bfloat16")]
        result = gloo.all_reduce(arrays)
        assert (result.shape, result.dtype) == ((2, 3), FORMATS["bfloat16"].numpy)
        assert not any(np.shares_memory(result, array) for array in arrays)


two = [np.zeros(3), np.ones(3)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gloo.chunk_bounds(-1, 4, 2), "-1 elements"),
        (lambda: gloo.chunk_bounds(1, 4, 0), "on 0 ranks"),
        (lambda: gloo.chunk_bounds(1, 3, 2), "3 bytes per element"),
        (lambda: gloo.chunk_bounds(1, 0, 2), "0 bytes per element"),
        (lambda: gloo.accumulation_order(2, 2), "chunk 2 of 2 ranks"),
        (lambda: gloo.all_reduce([]), "no arrays"),
        (lambda: gloo.all_reduce(two, "mean"), "unknown reduction 'mean'"),
        (lambda: gloo.reduce(two, 2), "root 2"),
        (lambda: gloo.reduce_scatter_tensor(two), r"shape \(3,\) does not split evenly over 2 ranks"),
        (lambda: gloo.reduce_scatter([two, two[:1]]), "rank 1 gives 1 pieces"),
        (lambda: gloo.all_reduce_coalesced([two, two[:1]]), r"rank 1 gives tensors of shapes \[\[3\]\]"),
        (lambda: gloo.all_reduce_coalesced([[], []]), r"rank 0 gives tensors of shapes \[\]"),
        (lambda: gloo.all_reduce_coalesced([[np.zeros(1), np.zeros(1, np.float32)]]), "one dtype for all"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
