"""The oracle's rule for gloo against gloo itself: all ranks in this process, every comparison bit for bit.

A process group of torch's gloo backend for each rank, all on one store and on the loopback interface. Collectives are
launched on all ranks and then waited for, so that no threads are needed but for the construction.
"""

import datetime
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch._C import _distributed_c10d as c10d

from lockstep.oracle import collectives, gloo
from lockstep.oracle.collectives import Array
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import canonical_order, evaluate_order, reduction_order, reveal

LENGTHS = [*range(1, 18), 31, 32, 33, 63, 64, 65, 100, 257, 1000, 1023, 4097, 10_000]
WORLDS = range(2, 9)  # with every length and format: 812 tensors, 4060 chunks
A_FEW_WORLDS = (1, 2, 3, 5)
BFLOAT16 = FORMATS["bfloat16"].numpy
OPERATIONS = {
    "sum": c10d.ReduceOp.SUM,
    "average": c10d.ReduceOp.AVG,
    "min": c10d.ReduceOp.MIN,
    "max": c10d.ReduceOp.MAX,
    "product": c10d.ReduceOp.PRODUCT,
}


def to_torch(array: Array) -> torch.Tensor:
    """A tensor with a copy of the array's bits."""
    copy = np.array(array)
    return (
        torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16) if copy.dtype == BFLOAT16 else torch.from_numpy(copy)
    )


def bits_of(tensor: torch.Tensor) -> Array:
    """The tensor's bits as an array."""
    return tensor.view(torch.int16).numpy().view(BFLOAT16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


class GlooRanks:
    """One gloo process group per rank; a method per collective takes and gives arrays, one per rank."""

    def __init__(self, world_size: int) -> None:
        store, errors = c10d.HashStore(), list[Exception]()
        group: Any = c10d.ProcessGroupGloo  # torch's stub calls its options otherwise
        device = group.create_device(interface="lo")  # one for all: its thread serves every rank
        self.groups: list[Any] = [None] * world_size

        def build(rank: int) -> None:
            try:
                options = group._Options()
                options._timeout = datetime.timedelta(seconds=60)
                options._devices = [device]
                options._threads = 1
                self.groups[rank] = group(store, rank, world_size, options)
            except Exception as error:
                errors.append(error)

        self._on_threads(build)
        if errors:
            self.close()
            raise errors[0]

    def _on_threads(self, function: Callable[[int], None]) -> None:
        threads = [threading.Thread(target=function, args=(rank,)) for rank in range(len(self.groups))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Gives up all groups at the same time: one after the other takes eight times as long."""

        def drop(rank: int) -> None:
            self.groups[rank] = None

        self._on_threads(drop)

    def _run(self, launch: Callable[[int, Any], Any]) -> None:
        for work in [launch(rank, group) for rank, group in enumerate(self.groups)]:
            work.wait()

    def all_reduce(self, arrays: list[Array], op: str = "sum") -> list[Array]:
        options = c10d.AllreduceOptions()
        options.reduceOp = c10d.ReduceOp(OPERATIONS[op])
        tensors = [to_torch(array) for array in arrays]
        self._run(lambda rank, group: group.allreduce([tensors[rank]], options))
        return [bits_of(tensor) for tensor in tensors]

    def all_reduce_coalesced(self, lists: list[list[Array]], op: str = "sum") -> list[list[Array]]:
        options = c10d.AllreduceCoalescedOptions()
        options.reduceOp = c10d.ReduceOp(OPERATIONS[op])
        tensors = [[to_torch(array) for array in arrays] for arrays in lists]
        self._run(lambda rank, group: group.allreduce_coalesced(tensors[rank], options))
        return [[bits_of(tensor) for tensor in row] for row in tensors]

    def reduce(self, arrays: list[Array], root: int, op: str = "sum") -> Array:
        options = c10d.ReduceOptions()
        options.reduceOp, options.rootRank = c10d.ReduceOp(OPERATIONS[op]), root
        tensors = [to_torch(array) for array in arrays]
        self._run(lambda rank, group: group.reduce([tensors[rank]], options))
        return bits_of(tensors[root])

    def reduce_scatter(self, lists: list[list[Array]], op: str = "sum") -> list[Array]:
        options = c10d.ReduceScatterOptions()
        options.reduceOp = c10d.ReduceOp(OPERATIONS[op])
        inputs = [[to_torch(piece) for piece in pieces] for pieces in lists]
        outputs = [torch.empty_like(pieces[rank]) for rank, pieces in enumerate(inputs)]
        self._run(lambda rank, group: group.reduce_scatter([outputs[rank]], [inputs[rank]], options))
        return [bits_of(output) for output in outputs]

    def reduce_scatter_tensor(self, arrays: list[Array], op: str = "sum") -> list[Array]:
        options = c10d.ReduceScatterOptions()
        options.reduceOp = c10d.ReduceOp(OPERATIONS[op])
        inputs = [to_torch(array) for array in arrays]
        outputs = [torch.empty_like(tensor[: len(tensor) // len(inputs)]) for tensor in inputs]
        self._run(lambda rank, group: group._reduce_scatter_base(outputs[rank], inputs[rank], options))
        return [bits_of(output) for output in outputs]

    def all_gather(self, arrays: list[Array]) -> list[list[Array]]:
        inputs = [to_torch(array) for array in arrays]
        outputs = [[torch.empty_like(tensor) for tensor in inputs] for _ in inputs]
        self._run(lambda rank, group: group.allgather([outputs[rank]], [inputs[rank]]))
        return [[bits_of(tensor) for tensor in row] for row in outputs]


Ranks = Callable[[int], GlooRanks]


@pytest.fixture(scope="module")
def gloo_ranks() -> Iterator[Ranks]:
    """``gloo_ranks(world_size)``: ranks that are built once."""
    worlds: dict[int, GlooRanks] = {}
    yield lambda world_size: worlds.get(world_size) or worlds.setdefault(world_size, GlooRanks(world_size))
    for ranks in worlds.values():
        ranks.close()


def floats(form: str, world_size: int, elements: int, *seed: int) -> list[Array]:
    """Floats over nine binades, different on every rank, so that a sum rounds at almost every hop."""
    random = np.random.default_rng([world_size, elements, *seed])
    values = random.standard_normal((world_size, elements)) * 2.0 ** random.integers(-4, 5, (world_size, elements))
    return list(values.astype(FORMATS[form].numpy))


def same_bits(left: Array, right: Array) -> bool:
    """The same shape, dtype and bits: zeros of different sign differ."""
    return (left.shape, left.dtype) == (right.shape, right.dtype) and left.tobytes() == right.tobytes()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_bit_of_an_all_reduce_is_predicted_on_every_rank(gloo_ranks: Ranks, world_size: int, form: str) -> None:
    in_rank_order = 0
    for elements in LENGTHS:
        arrays = floats(form, world_size, elements)
        expected = gloo.all_reduce(arrays)
        for rank, result in enumerate(gloo_ranks(world_size).all_reduce(arrays)):
            assert same_bits(result, expected), (elements, rank)
        in_rank_order += same_bits(expected, collectives.all_reduce(arrays)[0])
    # The order shows: most of these tensors would have other bits if the ranks were added from 0 upwards.
    assert world_size == 2 or in_rank_order < len(LENGTHS) / 2


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("op", ["average", "min", "max", "product"])
def test_every_other_reduction_follows_the_same_ring(gloo_ranks: Ranks, op: str, form: str) -> None:
    for world_size, elements in product(A_FEW_WORLDS, (0, 1, 13, 257)):
        arrays = floats(form, world_size, elements)
        expected = gloo.all_reduce(arrays, op)
        assert all(same_bits(result, expected) for result in gloo_ranks(world_size).all_reduce(arrays, op))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("op", OPERATIONS)
def test_zeros_of_both_signs_infinities_subnormals_overflow_and_nan_are_predicted(
    gloo_ranks: Ranks, op: str, form: str
) -> None:
    number = FORMATS[form]
    edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, *([float(number.largest), float(-number.largest)] * 2)]
    edges += [float(number.least_subnormal), float(-3 * number.least_subnormal), float(number.least_normal)]
    for world_size, with_nan in product(A_FEW_WORLDS, (False, True)):
        random = np.random.default_rng(world_size)
        choices = np.array(edges + [np.nan] * with_nan).astype(number.numpy)
        arrays = [random.choice(choices, 200) for _ in range(world_size)]
        expected = gloo.all_reduce(arrays, op)
        compared = ~np.isnan(expected)  # which payload a NaN has is not predicted, that it is one is
        assert compared.sum() > 20
        for result in gloo_ranks(world_size).all_reduce(arrays, op):
            assert np.array_equal(np.isnan(result), ~compared)
            assert same_bits(result[compared], expected[compared])


@pytest.mark.parametrize(("form", "world_size", "elements"), [("float32", 3, 2_500_000), ("float64", 4, 1_200_001)])
def test_tensors_of_more_than_two_segments_per_rank_are_predicted(
    gloo_ranks: Ranks, form: str, world_size: int, elements: int
) -> None:
    few = gloo.chunk_bounds(elements, 1, world_size)  # as if they were small enough for two segments
    assert gloo.chunk_bounds(elements, FORMATS[form].bytes, world_size) != few
    arrays = floats(form, world_size, elements)
    expected = gloo.all_reduce(arrays)
    assert all(same_bits(result, expected) for result in gloo_ranks(world_size).all_reduce(arrays))


@pytest.mark.parametrize("form", FORMATS)
def test_larger_worlds_are_predicted(gloo_ranks: Ranks, form: str) -> None:
    for world_size, elements in ((9, 257), (16, 1000)):
        arrays = floats(form, world_size, elements)
        expected = gloo.all_reduce(arrays)
        assert all(same_bits(result, expected) for result in gloo_ranks(world_size).all_reduce(arrays))


@pytest.mark.parametrize("form", FORMATS)
def test_the_tensor_form_of_reduce_scatter_is_a_slice_of_the_all_reduce(gloo_ranks: Ranks, form: str) -> None:
    for world_size, (rows, op) in product((*A_FEW_WORLDS, 8), ((1, "sum"), (3, "average"), (7, "max"), (50, "sum"))):
        arrays = [array.reshape(-1, 2) for array in floats(form, world_size, 2 * rows * world_size)]
        shards = gloo_ranks(world_size).reduce_scatter_tensor(arrays, op)
        assert all(map(same_bits, shards, gloo.reduce_scatter_tensor(arrays, op)))


@pytest.mark.parametrize("form", FORMATS)
def test_all_gather_after_reduce_scatter_gives_the_bits_of_the_all_reduce(gloo_ranks: Ranks, form: str) -> None:
    for world_size in A_FEW_WORLDS:
        ranks, arrays = gloo_ranks(world_size), floats(form, world_size, 20 * world_size)
        whole = ranks.all_reduce(arrays)[0]
        assert all(
            same_bits(np.concatenate(row), whole) for row in ranks.all_gather(ranks.reduce_scatter_tensor(arrays))
        )


@pytest.mark.parametrize("form", FORMATS)
def test_the_list_form_of_reduce_scatter_reduces_every_piece_alone(gloo_ranks: Ranks, form: str) -> None:
    for world_size, op in ((1, "sum"), (2, "sum"), (3, "sum"), (3, "average"), (3, "max"), (5, "sum"), (8, "sum")):
        sizes = [(0, 1, 5, 40)[rank % 4] for rank in range(1, world_size + 1)]
        lists = [collectives.split(array, sizes) for array in floats(form, world_size, sum(sizes))]
        expected = gloo.reduce_scatter(lists, op)
        assert all(map(same_bits, gloo_ranks(world_size).reduce_scatter(lists, op), expected))


def test_the_two_forms_of_reduce_scatter_have_different_bits(gloo_ranks: Ranks) -> None:
    for world_size in (3, 4, 8):
        arrays = floats("float32", world_size, 60 * world_size)
        lists = [collectives.split(array, [60] * world_size) for array in arrays]
        ranks = gloo_ranks(world_size)
        assert not all(map(same_bits, ranks.reduce_scatter(lists), ranks.reduce_scatter_tensor(arrays)))


@pytest.mark.parametrize("form", FORMATS)
def test_the_root_of_a_reduce_gets_the_bits_of_the_all_reduce(gloo_ranks: Ranks, form: str) -> None:
    for world_size in (1, 2, 3, 5):
        for root in range(world_size):
            op = ("sum", "average", "max")[root % 3]
            arrays = floats(form, world_size, 41, root)
            assert same_bits(gloo_ranks(world_size).reduce(arrays, root, op), gloo.reduce(arrays, root, op))


@pytest.mark.parametrize("form", FORMATS)
def test_coalesced_tensors_are_reduced_as_one(gloo_ranks: Ranks, form: str) -> None:
    sizes = [3, 0, 11, 40, 1]
    for world_size, op in product(A_FEW_WORLDS, ("sum", "average")):
        lists = [collectives.split(array, sizes) for array in floats(form, world_size, sum(sizes))]
        expected = gloo.all_reduce_coalesced(lists, op)
        for results in gloo_ranks(world_size).all_reduce_coalesced(lists, op):
            assert all(map(same_bits, results, expected))


@pytest.mark.parametrize("form", FORMATS)
def test_the_order_revealed_with_masks_is_the_order_predicted(gloo_ranks: Ranks, form: str) -> None:
    for world_size, elements in ((1, 3), (2, 3), (3, 13), (5, 40), (6, 40)):
        ranks = gloo_ranks(world_size)

        def last_rank(arrays: list[Array], ranks: GlooRanks = ranks) -> Array:
            return ranks.all_reduce(arrays)[-1]

        revealed = reveal(last_rank, elements, world_size, form)
        predicted = reduction_order("gloo", elements, FORMATS[form].bytes, world_size)
        assert revealed == canonical_order(predicted)
        arrays = floats(form, world_size, elements)
        assert same_bits(evaluate_order(revealed, arrays), ranks.all_reduce(arrays)[0])
