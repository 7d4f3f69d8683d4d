"""Is the world itself right? Looked at before anything is judged on it, so that nobody is blamed for its faults.

Every collective with every reduction and format, on data that nothing rounds, against `oracle.collectives`. Then the
order in which all-reduce adds is revealed: it must be a tree over all ranks, the predicted one where one is predicted,
and evaluated on random floats it must give the backend's bits. `python -m properties.soundness` prints these orders.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from oracle import collectives
from oracle.collectives import OPERATIONS, Array
from oracle.fingerprint import numbers, odd_part
from oracle.formats import FORMATS, Format
from oracle.lattice import reciprocal_error
from oracle.reduction_order import (
    Order,
    canonical_order,
    check_order,
    evaluate_order,
    from_sums,
    masks,
    reduction_order,
    show,
)
from properties.implementations import Unusable
from properties.judge import same_bits
from properties.where import WORLDS, decide
from worlds.contract import Job, World

FUNCTION = "properties.collective_rank:run_collectives"
PREDICTED = {"sim": "rank", "gloo": "gloo"}  # the names that `oracle.reduction_order` has for their orders
ELEMENTS = 13  # of the sums whose order is revealed: no multiple of any world size but 1 and 13

Call = dict[str, Any]


class Unsound(Exception):
    """The world does not do what its collectives mean. The message shows the collective and the values."""


def check(world: World, sizes: Sequence[int] = range(1, 9)) -> None:
    """Raises Unsound where a collective is not what it means on some number of ranks."""
    for size in sizes:
        asked, wanted = zip(*_meanings(size, world.name in PREDICTED), strict=True)
        for call, right, got in zip(asked, wanted, run(world, size, asked), strict=True):
            _compare(world, size, call, right, got)
    for size in {min(3, max(sizes)), max(sizes)}:
        for dtype in FORMATS:
            _check_order(world, size, dtype)


def run(world: World, size: int, calls: Iterable[Call]) -> list[list[list[Array]]]:
    """What each call gave on each rank. Raises Unsound where a rank has an error instead."""
    outcome = world.run(Job(FUNCTION, json.dumps(list(calls)), size))
    for rank, report in enumerate(outcome):
        if report.result is None:
            assert report.error is not None
            raise Unsound(f"on {size} ranks, rank {rank} ended its collectives with {report.error.message}")
    by_rank = [report.result["results"] for report in outcome if report.result is not None]
    return [list(each) for each in zip(*by_rank, strict=True)]


def order_of(world: World, size: int, dtype: str, elements: int = ELEMENTS) -> Order:
    """The order in which the world's all-reduce adds. Raises Unsound where it is not a sum of every rank, once each."""
    try:
        calls = [
            _call("all_reduce", dtype, [array.tolist() for array in arrays]) for arrays in masks(elements, size, dtype)
        ]
        return from_sums([by_rank[0][0] for by_rank in run(world, size, calls)], elements, size, dtype)
    except ValueError as error:
        raise Unsound(f"all_reduce of {dtype} on {size} ranks: {error}") from error


def _check_order(world: World, size: int, dtype: str) -> None:
    """The revealed order is the predicted one, and gives the bits of random numbers."""
    order = order_of(world, size, dtype)
    check_order(order, ELEMENTS, size)
    if world.name in PREDICTED:
        predicted = reduction_order(PREDICTED[world.name], ELEMENTS, FORMATS[dtype].bytes, size)
        if canonical_order(order) != canonical_order(predicted):
            raise Unsound(
                f"all_reduce of {dtype} on {size} ranks adds in the order {show(order)} and not, as predicted, "
                f"{show(canonical_order(predicted))}"
            )
    random = np.random.default_rng(size)
    arrays = [random.standard_normal(ELEMENTS).astype(FORMATS[dtype].numpy) for _ in range(size)]
    call = _call("all_reduce", dtype, [array.tolist() for array in arrays])
    (by_rank,) = run(world, size, [call])
    # A 16-bit sum may be rounded at every hop or, as hardware that adds in float32 does, once at the end.
    candidates = [evaluate_order(order, arrays), evaluate_order(order, arrays, accumulator="float32")]
    for right in candidates[:1] if FORMATS[dtype].bytes > 2 else candidates:
        if all(same_bits(got[0], right) for got in by_rank):
            return
    _compare(world, size, call, [[candidates[0]]] * size, by_rank)


def _call(operation: str, dtype: str, arrays: Sequence[Any], reduction: str = "sum", root: int = 0) -> Call:
    return {"operation": operation, "dtype": dtype, "arrays": arrays, "reduction": reduction, "root": root}


def _meanings(size: int, predicted: bool) -> Iterator[tuple[Call, list[list[Array]]]]:
    """Calls on so many ranks, and what each rank must get."""
    for name, form in FORMATS.items():
        arrays, factors = _terms(size, form), _factors(size, form)
        listed = [array.tolist() for array in arrays]
        # A backend that averages with a rounded reciprocal may: leave out where that cannot give the exact mean.
        safe = predicted or abs(reciprocal_error(size, form)) <= form.unit_roundoff / 2
        for reduction in (each for each in OPERATIONS if safe or each != "average"):
            mine = factors if reduction == "product" else arrays
            reduced, numbers_ = collectives.all_reduce(mine, reduction), [array.tolist() for array in mine]
            yield _call("all_reduce", name, numbers_, reduction), [[array] for array in reduced]
            root = OPERATIONS.index(reduction) % size
            at_root = [[array] if rank == root else [] for rank, array in enumerate(reduced)]
            yield _call("reduce", name, numbers_, reduction, root), at_root
            scattered = [[array] for array in collectives.reduce_scatter_tensor(mine, reduction)]
            yield _call("reduce_scatter_tensor", name, numbers_, reduction), scattered
            yield _call("reduce_scatter", name, numbers_, reduction), scattered
        for root in {0, size - 1}:
            yield _call("broadcast", name, listed, root=root), [[arrays[root]]] * size
        yield _call("all_gather", name, listed), collectives.all_gather(arrays)
        yield _call("all_gather_into_tensor", name, listed), [[each] for each in collectives.all_gather_tensor(arrays)]


def _terms(size: int, form: Format) -> list[Array]:
    """odd(N) k for each rank, k from 1 .. m, another one on every rank: sums of N stay exact, and so does their mean.

    The N largest k add up to N m - N (N - 1) / 2, times odd(N) at most 2**p.
    """
    room = 2**form.precision // odd_part(size)
    most = min((room + size * (size - 1) // 2) // size, 1000)
    starts = numbers(2 * size) // 2
    return [(odd_part(size) * (1 + (rank + starts) % most)).astype(form.numpy) for rank in range(size)]


def _factors(size: int, form: Format) -> list[Array]:
    """Powers of two but 1, some of them times 3 on one rank: a product that is exact in any order."""
    powers = np.array([2.0, 4.0, 0.5, 8.0])
    places = np.arange(2 * size)
    return [
        (powers[(rank + places) % 4] * np.where((places % size == rank), 3, 1)).astype(form.numpy)
        for rank in range(size)
    ]


def _compare(world: World, size: int, call: Call, right: list[list[Array]], got: list[list[Array]]) -> None:
    for rank, (wanted, seen) in enumerate(zip(right, got, strict=True)):
        if len(wanted) != len(seen) or not all(map(same_bits, seen, wanted)):
            how = f"{call['operation']}({call['reduction']}, {call['dtype']})"
            arrays = "; ".join(f"rank {each} gives {values}" for each, values in enumerate(call["arrays"]))
            told = [[array.tolist() for array in arrays_] for arrays_ in (seen, wanted)]
            raise Unsound(
                f"{how} on {size} ranks of the {world.name} world: rank {rank} gets {told[0]} where it must get "
                f"{told[1]}; {arrays}"
            )


def main() -> None:
    """Prints the order in which a world's all-reduce adds."""
    worlds = [name for name in WORLDS if name != "torchrun"]  # which a job starts, not a command
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--world", choices=worlds, default="gloo")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks (default: %(default)s)")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="of the tensor (default: %(default)s)")
    parser.add_argument("--dtype", choices=list(FORMATS), default="float32")
    asked = parser.parse_args()
    if asked.ranks < 1 or asked.elements < 1:
        parser.error(f"--ranks {asked.ranks} and --elements {asked.elements}: both are at least 1")
    try:
        world = decide([asked.world], None, False, 1, False).start(asked.world)
    except Unusable as error:
        parser.error(str(error))
    try:
        print(show(order_of(world, asked.ranks, asked.dtype, asked.elements)))
    finally:
        world.close()


if __name__ == "__main__":
    main()
