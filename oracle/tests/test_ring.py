"""The ring checked for results, for who owns what, for who sends what when, and for published volumes."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.collectives import OPERATIONS, Array, all_gather_tensor, all_reduce, reduce_scatter_tensor, volume
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import evaluate_order, reduction_order
from lockstep.oracle.ring import (
    Message,
    all_gather_schedule,
    carry_out,
    chunk_sizes,
    cut,
    reduce_scatter_schedule,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from lockstep.oracle.tests.examples import examples

WORLDS = range(1, 9)
LENGTHS = (0, 1, 2, 3, 5, 7, 8, 24, 25)


def integers(world_size: int, shape: tuple[int, ...]) -> list[Array]:
    """Different on every rank and element; products of them fit."""
    return [np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape) + 30 * rank for rank in range(world_size)]


def floats(world_size: int, elements: int, form: str) -> list[Array]:
    random = np.random.default_rng(world_size)
    return [random.standard_normal(elements).astype(FORMATS[form].numpy) for _ in range(world_size)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_every_rank_ends_with_the_reduction_whatever_the_length(world_size: int) -> None:
    for elements in LENGTHS:
        for op in ("sum", "min", "max"):
            arrays = integers(world_size, (elements,))
            results = ring_all_reduce(arrays, op).results
            assert [result.tolist() for result in results] == [all_reduce(arrays, op)[0].tolist()] * world_size


def test_shape_and_dtype_survive() -> None:
    for shape in ((), (1,), (2, 3), (0, 4)):
        for op in OPERATIONS:
            arrays = [array.astype(np.float16) for array in integers(3, shape)]
            for result in ring_all_reduce(arrays, op).results:
                assert result.shape == shape
                assert result.dtype == np.float16


@pytest.mark.parametrize("world_size", WORLDS)
def test_after_phase_one_rank_r_has_all_of_chunk_r_plus_1_and_of_no_other(world_size: int) -> None:
    # Rank r contributes 16**r: the hexadecimal digits of a value count every rank's contributions to it.
    sizes = chunk_sizes(2 * world_size, world_size)
    held = [cut(np.full(2 * world_size, 16**rank, dtype=object), sizes) for rank in range(world_size)]
    carry_out(reduce_scatter_schedule(sizes), held, "sum")
    everyone = int("1" * world_size, 16)
    for rank in range(world_size):
        complete = [chunk for chunk, values in held[rank].items() if values.tolist() == [everyone] * 2]
        assert complete == [(rank + 1) % world_size]


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_reduce_scatter_of_its_own_leaves_chunk_r_on_rank_r(world_size: int) -> None:
    for sizes in chunk_sizes(3 * world_size + 1, world_size), [rank % 3 for rank in range(world_size)]:
        arrays = integers(world_size, (sum(sizes),))
        expected = reduce_scatter_tensor(arrays, "sum", sizes)
        results = ring_reduce_scatter(arrays, "sum", sizes).results
        assert [result.tolist() for result in results] == [piece.tolist() for piece in expected]


@pytest.mark.parametrize("world_size", WORLDS)
def test_an_all_gather_of_its_own_starts_with_chunk_r_on_rank_r(world_size: int) -> None:
    shards = [np.arange(rank % 3) + 10 * rank for rank in range(world_size)]
    results = ring_all_gather(shards).results
    assert [result.tolist() for result in results] == [whole.tolist() for whole in all_gather_tensor(shards)]


@pytest.mark.parametrize("op", OPERATIONS)
def test_reduce_scatter_then_all_gather_is_the_all_reduce(op: str) -> None:
    arrays = [array.astype(np.float64) for array in integers(4, (3,))]
    halves = ring_all_gather(ring_reduce_scatter(arrays, op).results).results
    assert [half.tolist() for half in halves] == [array.tolist() for array in ring_all_reduce(arrays, op).results]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_chunk_c_is_added_from_rank_c_upwards(form: str, world_size: int) -> None:
    arrays = floats(world_size, 40, form)
    order = reduction_order("ring", 40, FORMATS[form].bytes, world_size)
    expected = evaluate_order(order, arrays).tobytes()
    assert [result.tobytes() for result in ring_all_reduce(arrays).results] == [expected] * world_size


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_a_reduce_scatter_of_its_own_adds_from_rank_c_plus_1_upwards(form: str, world_size: int) -> None:
    arrays = floats(world_size, 40, form)
    order = reduction_order("ring reduce-scatter", 40, FORMATS[form].bytes, world_size)
    results = ring_reduce_scatter(arrays).results
    assert np.concatenate(results).tobytes() == evaluate_order(order, arrays).tobytes()


def test_the_shift_of_the_schedule_shows_in_the_bits() -> None:
    arrays = floats(4, 400, "float32")
    assert np.concatenate(ring_reduce_scatter(arrays).results).tobytes() != ring_all_reduce(arrays).results[0].tobytes()


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 3))
@examples(80)
def test_every_rank_sends_once_per_step_and_only_to_the_next(world_size: int, elements: int, shift: int) -> None:
    sizes = chunk_sizes(elements, world_size)
    for schedule in reduce_scatter_schedule, all_gather_schedule:
        messages = schedule(sizes, shift)
        assert [(m.step, m.sender) for m in messages] == [
            (s, r) for s in range(world_size - 1) for r in range(world_size)
        ]
        assert all(m.receiver == (m.sender + 1) % world_size and m.elements == sizes[m.chunk] for m in messages)


@given(st.integers(2, 12), st.integers(0, 3))
def test_what_a_rank_sends_it_received_the_step_before(world_size: int, shift: int) -> None:
    sizes = chunk_sizes(world_size, world_size)
    both = [reduce_scatter_schedule(sizes, shift), all_gather_schedule(sizes, shift)]
    received: dict[int, int] = {}
    for step in range(2 * (world_size - 1)):
        phase, inner = divmod(step, world_size - 1)
        now = [m for m in both[phase] if m.step == inner]
        assert all(received.get(m.sender, m.chunk) == m.chunk for m in now)
        received = {m.receiver: m.chunk for m in now}


@given(st.integers(1, 12), st.integers(0, 40))
@examples(80)
def test_messages_and_volume_are_the_published_ones(world_size: int, elements: int) -> None:
    arrays = integers(world_size, (elements,))
    runs = {
        "all_reduce": ring_all_reduce(arrays),
        "reduce_scatter": ring_reduce_scatter(arrays),
        "all_gather": ring_all_gather(ring_reduce_scatter(arrays).results),
    }
    for collective, run in runs.items():
        phases = 2 if collective == "all_reduce" else 1
        sent = [sum(m.elements for m in run.messages if m.sender == rank) for rank in range(world_size)]
        for rank in range(world_size):
            assert sum(m.sender == rank for m in run.messages) == phases * (world_size - 1)
            assert sum(m.receiver == rank for m in run.messages) == phases * (world_size - 1)
        assert sum(sent) == world_size * volume(collective, elements, world_size)
        if elements % world_size == 0:
            assert set(sent) == {volume(collective, elements, world_size)}


def test_all_messages_of_a_step_leave_before_any_arrives() -> None:
    held = [{0: np.array([rank])} for rank in range(2)]
    carry_out([Message("swap", 0, 0, 1, 0, 1), Message("swap", 0, 1, 0, 0, 1)], held, None)
    assert [int(mine[0][0]) for mine in held] == [1, 0]


@given(st.integers(0, 1000), st.integers(1, 40))
def test_chunks_cover_the_elements_and_differ_by_at_most_one(elements: int, world_size: int) -> None:
    sizes = chunk_sizes(elements, world_size)
    assert (len(sizes), sum(sizes)) == (world_size, elements)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [len(part) for part in np.array_split(np.arange(elements), world_size)]


def test_inputs_stay_as_they_were_and_results_share_no_memory() -> None:
    for world_size in (1, 3):
        arrays = integers(world_size, (5,))
        for run in ring_all_reduce(arrays), ring_reduce_scatter(arrays), ring_all_gather(arrays):
            for index, result in enumerate(run.results):
                assert not any(np.shares_memory(result, other) for other in [*arrays, *run.results[:index]])
        assert all(map(np.array_equal, arrays, integers(world_size, (5,))))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: chunk_sizes(-1, 2), "-1 elements"),
        (lambda: ring_all_reduce([]), "no arrays"),
        (lambda: ring_all_reduce([np.zeros(2), np.zeros(3)]), "rank 1 has"),
        (lambda: ring_all_reduce([np.zeros(2), np.zeros(2)], "mean"), "unknown reduction 'mean'"),
        (lambda: ring_reduce_scatter([np.zeros(2), np.zeros(2)], "sum", [2]), "1 sizes for 2 ranks"),
        (lambda: ring_reduce_scatter([np.zeros(2), np.zeros(2)], "sum", [2, 1]), r"\[2, 1\]"),
        (lambda: ring_reduce_scatter([np.zeros(2), np.zeros(2)], "sum", [3, -1]), r"\[3, -1\]"),
        (lambda: ring_all_gather([]), r"\[\]"),
        (lambda: ring_all_gather([np.zeros(2), np.zeros(2, np.float32)]), "'float64', 'float32'"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
