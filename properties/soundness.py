"""Check the world itself before anything is judged on it, so that its faults are not blamed on an implementation.

Every collective is compared with `oracle.collectives`, with every reduction and format, on data for which nothing
rounds. For most numbers of ranks, only the sum, the average and one other reduction in turn are checked, because the
minimum, for example, does not depend on the number of ranks. Then follow integers, collectives that only move data,
asynchronous collectives, and those of a group without rank 0. Finally the order in which all-reduce adds is revealed.
It must be a tree over all ranks and equal the predicted one, if there is a prediction. Evaluated on random floats, it
must give the backend's bits. `lockstep world` prints these orders.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from lockstep.oracle import collectives
from lockstep.oracle.collectives import OPERATIONS, Array
from lockstep.oracle.fingerprint import numbers, odd_part
from lockstep.oracle.formats import FORMATS, Format
from lockstep.oracle.lattice import reciprocal_error
from lockstep.oracle.reduction_order import (
    Order,
    canonical_order,
    check_order,
    evaluate_order,
    from_sums,
    masks,
    reduction_order,
    show,
)
from lockstep.properties.judging.judge import same_bits
from lockstep.properties.running.where import add_world, start_for
from lockstep.worlds.contract import Job, World

FUNCTION = "lockstep.properties.ranks.plain_collectives:run_collectives"
PREDICTED = {"sim": "rank", "gloo": "gloo"}  # the names of their orders in `oracle.reduction_order`
ELEMENTS = 13  # elements of the sums whose order is revealed; a multiple of no world size but 1 and 13
# Beyond these, a float of that width cannot represent every integer.
WHOLE = {"int64": 2**53, "int32": 2**24, "uint8": 0, "bool": 0}

Call = dict[str, Any]
Meaning = tuple[Call, list[list[Array]]]  # a call, and the expected result of each rank


class Unsound(Exception):
    """A collective of the world has a wrong result. The message shows the collective and the values."""


def check(world: World, sizes: Sequence[int] = range(1, 9)) -> None:
    """Raise Unsound if a collective has a wrong result on some number of ranks."""
    looked_at_closely = {min(3, max(sizes)), max(sizes)}
    for size in sizes:
        closely = size in looked_at_closely
        meanings = [*_meanings(size, world, closely), *(_without_rank_0(size) if closely else ())]
        asked, wanted = zip(*meanings, strict=True)
        for call, right, got in zip(asked, wanted, run(world, size, asked), strict=True):
            _compare(world, size, call, right, got)
    for size in looked_at_closely:
        for dtype in FORMATS:
            _check_order(world, size, dtype)


def run(world: World, size: int, calls: Iterable[Call]) -> list[list[list[Array]]]:
    """The result of each call on each rank. Raises Unsound if a rank has an error instead."""
    outcome = world.run(Job(FUNCTION, json.dumps(list(calls)), size))
    for rank, report in enumerate(outcome):
        if report.result is None:
            assert report.error is not None
            raise Unsound(f"on {size} ranks, rank {rank} ended its collectives with {report.error.message}")
    by_rank = [report.result["results"] for report in outcome if report.result is not None]
    return [list(each) for each in zip(*by_rank, strict=True)]


def order_of(world: World, size: int, dtype: str, elements: int = ELEMENTS) -> Order:
    """The order in which the world's all-reduce adds. Raises Unsound if it is not a sum with every rank once."""
    order, _ = _reveal(world, size, dtype, elements, [])
    return order


def _reveal(
    world: World, size: int, dtype: str, elements: int, more: Sequence[Call]
) -> tuple[Order, list[list[list[Array]]]]:
    """The result of `order_of`, and the results of more calls on each rank.

    They run in one job, because creating process groups takes time on real processes.
    """
    calls = [_call("all_reduce", dtype, _listed(arrays)) for arrays in masks(elements, size, dtype)]
    results = run(world, size, [*calls, *more])
    try:
        sums = [by_rank[0][0] for by_rank in results[: len(calls)]]
        return from_sums(sums, elements, size, dtype), results[len(calls) :]
    except ValueError as error:
        raise Unsound(f"all_reduce of {dtype} on {size} ranks: {error}") from error


def _check_order(world: World, size: int, dtype: str) -> None:
    """Check that the revealed order is the predicted one, and gives the bits of random numbers."""
    random = np.random.default_rng(size)
    arrays = [random.standard_normal(ELEMENTS).astype(FORMATS[dtype].numpy) for _ in range(size)]
    call = _call("all_reduce", dtype, _listed(arrays))
    order, (by_rank,) = _reveal(world, size, dtype, ELEMENTS, [call])
    check_order(order, ELEMENTS, size)
    if world.name in PREDICTED:
        predicted = reduction_order(PREDICTED[world.name], ELEMENTS, FORMATS[dtype].bytes, size)
        if canonical_order(order) != canonical_order(predicted):
            raise Unsound(
                f"all_reduce of {dtype} on {size} ranks adds in the order {show(order)} and not, as predicted, "
                f"{show(canonical_order(predicted))}"
            )
    # A 16-bit sum may be rounded at every hop or, as hardware that adds in float32 does, once at the end.
    candidates = [evaluate_order(order, arrays), evaluate_order(order, arrays, accumulator="float32")]
    for right in candidates[:1] if FORMATS[dtype].bytes > 2 else candidates:
        if all(same_bits(got[0], right) for got in by_rank):
            return
    _compare(world, size, call, [[candidates[0]]] * size, by_rank)


def _call(
    operation: str,
    dtype: str,
    arrays: Sequence[Any],
    reduction: str = "sum",
    root: int = 0,
    group: Sequence[int] | None = None,
    asynchronous: bool = False,
) -> Call:
    return {
        **{"operation": operation, "dtype": dtype, "arrays": arrays, "reduction": reduction, "root": root},
        **{"group": group, "asynchronous": asynchronous},
    }


def _meanings(size: int, world: World, closely: bool) -> Iterator[Meaning]:
    """Calls on so many ranks with their expected results. ``closely``: with every reduction and format."""
    others = [each for each in OPERATIONS if each not in ("sum", "average")]
    for turn, form in enumerate(FORMATS.values(), size):
        reductions = OPERATIONS if closely else ("sum", "average", others[turn % len(others)])
        yield from _floats(size, form, reductions, world.name in PREDICTED)
    for dtype in WHOLE:
        yield from _whole_numbers(size, dtype)
    yield from _moves(size)
    if world.device == "cpu":  # NCCL has no sparse collectives
        yield from _sparse(size)
    # Gloo sends no CUDA tensors as messages, and has no coalesced forms for them.
    if world.device == "cpu" or world.name == "nccl":
        yield from _messages(size, _exchanges_lists(world))
    yield from _asynchronous(size)


def _floats(size: int, form: Format, reductions: Iterable[str], predicted: bool) -> Iterator[Meaning]:
    """Reductions of floats, and the other most common collectives."""
    name, arrays, factors = form.name, _terms(size, form), _factors(size, form)
    # A backend may average with a rounded reciprocal. Leave out averages for which that cannot give the exact mean.
    safe = predicted or abs(reciprocal_error(size, form)) <= form.unit_roundoff / 2
    for reduction in (each for each in reductions if safe or each != "average"):
        mine = factors if reduction == "product" else arrays
        reduced, given = collectives.all_reduce(mine, reduction), _listed(mine)
        yield _call("all_reduce", name, given, reduction), [[array] for array in reduced]
        root = OPERATIONS.index(reduction) % size
        at_root = [[array] if rank == root else [] for rank, array in enumerate(reduced)]
        yield _call("reduce", name, given, reduction, root), at_root
        scattered = [[array] for array in collectives.reduce_scatter_tensor(mine, reduction)]
        yield _call("reduce_scatter_tensor", name, given, reduction), scattered
        yield _call("reduce_scatter", name, given, reduction), scattered
    for root in {0, size - 1}:
        yield _call("broadcast", name, _listed(arrays), root=root), [[arrays[root]]] * size
    yield _call("all_gather", name, _listed(arrays)), collectives.all_gather(arrays)
    yield (
        _call("all_gather_into_tensor", name, _listed(arrays)),
        [[each] for each in collectives.all_gather_tensor(arrays)],
    )


def _whole_numbers(size: int, dtype: str) -> Iterator[Meaning]:
    """Reductions of integers: flags, counters, buffers, and DDP's map of used parameters."""
    arrays = _whole(size, dtype)
    given = _listed(arrays)
    for reduction in ("max",) if dtype == "bool" else ("sum", "min", "max"):
        yield (
            _call("all_reduce", dtype, given, reduction),
            [[each] for each in collectives.all_reduce(arrays, reduction)],
        )
    yield _call("broadcast", dtype, given, root=size - 1), [[arrays[-1]]] * size
    yield _call("all_gather", dtype, given), collectives.all_gather(arrays)


def _moves(size: int) -> Iterator[Meaning]:
    """Collectives that only move data, in one format, and objects as pickles of different lengths."""
    arrays, root = _terms(size, FORMATS["float32"]), size - 1
    given, pieces = _listed(arrays), [np.split(array, size) for array in arrays]
    yield _call("gather", "float32", given, root=root), [each or [] for each in collectives.gather(arrays, root)]
    yield _call("scatter", "float32", given, root=root), [[each] for each in collectives.scatter(pieces, root)]
    exchanged = [[np.concatenate(each)] for each in collectives.all_to_all(pieces)]
    yield _call("all_to_all_single", "float32", given), exchanged
    objects = [np.arange(rank + 1) + 10 * rank for rank in range(size)]
    yield _call("all_gather_object", "int64", _listed(objects)), collectives.all_gather(objects)
    yield _call("broadcast_object_list", "int64", _listed(objects), root=root), [[objects[root]]] * size


def _sparse(size: int) -> Iterator[Meaning]:
    """The sum of sparse tensors with different nonzero places on each rank, and some on all."""
    places = np.arange(len(_terms(size, FORMATS["float32"])[0]))
    arrays = [np.where((places + rank) % 3, array, 0) for rank, array in enumerate(_terms(size, FORMATS["float32"]))]
    for asynchronous in (False, True):
        call = _call("all_reduce, sparse", "float32", _listed(arrays), asynchronous=asynchronous)
        yield call, [[each] for each in collectives.all_reduce(arrays)]


def _exchanges_lists(world: World) -> bool:
    """True if the backend has an all_to_all of lists. Gloo has it since torch 2.12."""
    return world.name in ("sim", "nccl") or tuple(map(int, version("torch").split(".")[:2])) >= (2, 12)


def _messages(size: int, lists: bool) -> Iterator[Meaning]:
    """Messages, lists of pieces, and several tensors at once."""
    arrays, root = _terms(size, FORMATS["float32"]), size - 1
    given = _listed(arrays)
    if lists:
        yield _call("all_to_all", "float32", given), collectives.all_to_all([np.split(array, size) for array in arrays])
    yield _call("all_reduce, coalesced", "float32", given), [[each] for each in collectives.all_reduce(arrays)]
    yield _call("broadcast, coalesced", "float32", given, root=root), [[arrays[root]]] * size
    for asynchronous in (False, True) if size > 1 else ():
        before = [[arrays[rank - 1]] for rank in range(size)]
        yield _call("send and recv", "float32", given, asynchronous=asynchronous), before


def _asynchronous(size: int) -> Iterator[Meaning]:
    """Several collectives in flight at once."""
    arrays = _terms(size, FORMATS["float32"])
    results = {
        "all_reduce": collectives.all_reduce(arrays),
        "broadcast": collectives.broadcast(arrays, 0),
        "reduce_scatter_tensor": collectives.reduce_scatter_tensor(arrays),
        "all_gather_into_tensor": collectives.all_gather_tensor(arrays),
    }
    for operation, right in results.items():
        yield _call(operation, "float32", _listed(arrays), asynchronous=True), [[each] for each in right]


def _without_rank_0(size: int) -> Iterator[Meaning]:
    """Collectives in the group of all other ranks, in which a rank's place differs from its number."""
    if size == 1:
        return
    group = list(range(1, size))
    arrays = [array[: 2 * len(group)] for array in _terms(size, FORMATS["float32"])]
    members = arrays[1:]
    results = {
        "all_reduce": collectives.all_reduce(members),
        "broadcast": collectives.broadcast(members, len(group) - 1),
        "reduce_scatter_tensor": collectives.reduce_scatter_tensor(members),
        "all_gather_into_tensor": collectives.all_gather_tensor(members),
    }
    for operation, right in results.items():
        for asynchronous in (False, True) if operation == "all_reduce" else (False,):
            call = _call(operation, "float32", _listed(arrays), "sum", group[-1], group, asynchronous)
            yield call, [[], *([each] for each in right)]


def _listed(arrays: Sequence[Array]) -> list[Any]:
    return [array.tolist() for array in arrays]


def _whole(size: int, dtype: str) -> list[Array]:
    """Integers that differ between ranks and that no float of their width can represent exactly.

    Sums of 8 ranks fit uint8. For bool, each rank alone is true somewhere, and in some places no rank is.
    """
    places = np.arange(2 * size)
    if dtype == "bool":
        return [places == rank for rank in range(size)]
    return [(WHOLE[dtype] + 1 + (rank + 3 * places) % 31).astype(dtype) for rank in range(size)]


def _terms(size: int, form: Format) -> list[Array]:
    """odd(N) k for each rank, with k from 1 .. m different on every rank. Sums of N are exact, and so is their mean.

    The N largest k add up to N m - N (N - 1) / 2, times odd(N) at most 2**p.
    """
    room = 2**form.precision // odd_part(size)
    most = min((room + size * (size - 1) // 2) // size, 1000)
    starts = numbers(2 * size) // 2
    return [(odd_part(size) * (1 + (rank + starts) % most)).astype(form.numpy) for rank in range(size)]


def _factors(size: int, form: Format) -> list[Array]:
    """Powers of two except 1, some of them times 3 on one rank. Their product is exact in any order."""
    powers = np.array([2.0, 4.0, 0.5, 8.0])
    places = np.arange(2 * size)
    return [
        (powers[(rank + places) % 4] * np.where((places % size == rank), 3, 1)).astype(form.numpy)
        for rank in range(size)
    ]


def _compare(world: World, size: int, call: Call, right: list[list[Array]], got: list[list[Array]]) -> None:
    for rank, (wanted, seen) in enumerate(zip(right, got, strict=True)):
        if len(wanted) != len(seen) or not all(map(same_bits, seen, wanted)):
            how = f"{'asynchronous ' * call['asynchronous']}{call['operation']}({call['reduction']}, {call['dtype']})"
            how += f" in the group {call['group']}" if call["group"] else ""
            arrays = "; ".join(f"rank {each} gives {values}" for each, values in enumerate(call["arrays"]))
            told = [[array.tolist() for array in arrays_] for arrays_ in (seen, wanted)]
            raise Unsound(
                f"{how} on {size} ranks of the {world.name} world: rank {rank} gets {told[0]} where it must get "
                f"{told[1]}; {arrays}"
            )


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the order in which a world's all-reduce adds the ranks' values."""
    add_world(parser)
    parser.add_argument("--ranks", type=int, default=4, help="world size (default: %(default)s)")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="length of the tensor (default: %(default)s)")
    parser.add_argument(
        "--dtype", choices=list(FORMATS), default="float32", help="of its elements (default: %(default)s)"
    )
    asked = parser.parse_args(arguments)
    if asked.ranks < 1 or asked.elements < 1:
        parser.error(f"--ranks {asked.ranks} and --elements {asked.elements}: both must be at least 1")
    world = start_for(parser, asked, asked.ranks)
    try:
        print(show(order_of(world, asked.ranks, asked.dtype, asked.elements)))
    finally:
        world.close()
