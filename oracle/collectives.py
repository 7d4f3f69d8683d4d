"""The meaning of every collective on plain arrays: one per rank in, one per rank out.

The index of an array is its rank in the group; N is the number of ranks. Nothing here knows how data travels
(`oracle.ring`, `oracle.tree`) or in which order a real backend adds (`oracle.reduction_order`, `oracle.gloo`). Results
never share memory with the inputs or with one another. The names and their meaning are MPI's (MPI 4.1, chapter 6) and
`torch.distributed`'s.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.formats import FORMATS

Array = NDArray[Any]
T = TypeVar("T")
U = TypeVar("U")

OPERATIONS = ("sum", "average", "min", "max", "product")
_FLOATS = tuple(form.numpy for form in FORMATS.values())


def combine(op: str, left: Array, right: Array) -> Array:
    """One step of a reduction: ``left op right``, element by element, rounded to the dtype of both.

    The average combines as the sum does; `finish` divides. Among zeros of both signs, min and max may give either
    zero; a NaN on either side gives NaN, which backends may drop (`oracle.gloo`; NCCL's fminf and fmaxf do). float16
    and bfloat16 sums and products are correctly rounded (measured, NumPy 2.4 and ml_dtypes 0.6).
    """
    check_operation(op)
    function = {"sum": np.add, "average": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(function[op](left, right))


def finish(op: str, total: Array, world_size: int) -> Array:
    """Finish a reduction whose ``total`` has every rank: RN(total / N) for the average, one true division; else total.

    16-bit totals are divided in float32 and rounded again, as torch does; for N that the format holds this is the
    correctly rounded quotient (24 >= 2 * 11 + 2). Integers are refused: backends disagree on how to round their mean.
    """
    check_operation(op)
    if op != "average":
        return total
    if total.dtype == object:
        return np.asarray(total * Fraction(1, world_size))
    if total.dtype not in _FLOATS:
        raise ValueError(f"the average of {total.dtype} has no one meaning: use {', '.join(FORMATS)}")
    wide = np.float32 if total.dtype.itemsize == 2 else total.dtype
    return np.asarray(total.astype(wide) / np.asarray(world_size, wide)).astype(total.dtype)


def check_operation(op: str) -> None:
    """ValueError unless ``op`` is one of ``OPERATIONS``."""
    if op not in OPERATIONS:
        raise ValueError(f"unknown reduction {op!r}: it must be one of {', '.join(OPERATIONS)}")


def check_alike(arrays: Sequence[Array]) -> None:
    """ValueError unless there is at least one rank and all ranks hold the same shape and dtype."""
    if not arrays:
        raise ValueError("no arrays: a collective needs those of at least one rank")
    for rank, array in enumerate(arrays):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            raise ValueError(
                f"rank {rank} has {array.dtype}{list(array.shape)} where rank 0 has "
                f"{arrays[0].dtype}{list(arrays[0].shape)}: a reduction needs the same shape and dtype on every rank"
            )


def check_counts(elements: int, world_size: int) -> None:
    """ValueError for fewer than 0 elements or fewer than 1 rank."""
    if elements < 0 or world_size < 1:
        raise ValueError(f"{elements} elements on {world_size} ranks: give at least 0 elements and 1 rank")


def check_root(root: int, world_size: int) -> None:
    """ValueError unless ``root`` is a rank of the group."""
    if not 0 <= root < world_size:
        raise ValueError(f"root {root} is no rank of a group of {world_size}: it must be in 0..{world_size - 1}")


def check_square(lists: Sequence[Sequence[Array]]) -> None:
    """ValueError unless every rank gives one piece to each rank."""
    for rank, pieces in enumerate(lists):
        if len(pieces) != len(lists):
            raise ValueError(f"rank {rank} gives {len(pieces)} pieces to {len(lists)} ranks: give one for each rank")


def reduction(arrays: Sequence[Array], op: str = "sum") -> Array:
    """((x[0] op x[1]) op x[2]) ... op x[N-1], then `finish`.

    For Fractions (dtype object), for integers that do not overflow, for min and max this is the mathematical result,
    whatever the order. For floating-point sums and products it is one of the possible results: that of rank order,
    rounded to the dtype at each step.
    """
    check_alike(arrays)
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = combine(op, total, array)
    return finish(op, total, len(arrays))


def broadcast(arrays: Sequence[Array], root: int) -> list[Array]:
    """out[r] = x[root]. All ranks must give the shape and dtype that the root sends."""
    check_alike(arrays)
    check_root(root, len(arrays))
    return [arrays[root].copy() for _ in arrays]


def reduce(arrays: Sequence[Array], root: int, op: str = "sum") -> list[Array]:
    """out[root] = op over r of x[r]; out[r] = x[r] elsewhere (what real backends leave there is not defined)."""
    result = reduction(arrays, op)
    check_root(root, len(arrays))
    return [result if rank == root else array.copy() for rank, array in enumerate(arrays)]


def all_reduce(arrays: Sequence[Array], op: str = "sum") -> list[Array]:
    """out[r] = op over s of x[s], the same bits on every rank."""
    result = reduction(arrays, op)
    return [result.copy() for _ in arrays]


def reduce_scatter(lists: Sequence[Sequence[Array]], op: str = "sum") -> list[Array]:
    """List form: out[r] = op over s of x[s][r], where x[s][r] is the piece that rank s has for rank r.

    Pieces for different ranks may have different shapes; those for one rank may not.
    """
    check_square(lists)
    return [reduction([pieces[rank] for pieces in lists], op) for rank in range(len(lists))]


def split(array: Array, sizes: Sequence[int]) -> list[Array]:
    """Consecutive pieces along the first dimension: piece r is rows sum(sizes[:r]) to sum(sizes[:r+1]) - 1."""
    if array.ndim == 0 or min(sizes, default=0) < 0 or sum(sizes) != len(array):
        raise ValueError(
            f"shape {array.shape} is not {list(sizes)} rows: sizes from 0 must add up to the first dimension"
        )
    stops = np.cumsum([0, *sizes])
    return [array[lo:hi].copy() for lo, hi in pairwise(stops)]


def even_sizes(array: Array, world_size: int) -> list[int]:
    """rows / N for every rank; ValueError where N does not divide the rows, or there is no first dimension."""
    if array.ndim == 0 or len(array) % world_size:
        raise ValueError(f"shape {array.shape} does not split evenly over {world_size} ranks: pad its first dimension")
    return [len(array) // world_size] * world_size


def reduce_scatter_tensor(arrays: Sequence[Array], op: str = "sum", sizes: Sequence[int] | None = None) -> list[Array]:
    """Tensor form: out[r] = piece r of (op over s of x[s]), split along the first dimension.

    ``sizes[r]`` is the number of rows of rank r; without it the rows are split evenly, and N must divide them.
    """
    result = reduction(arrays, op)
    sizes = even_sizes(result, len(arrays)) if sizes is None else sizes
    if len(sizes) != len(arrays):
        raise ValueError(f"{len(sizes)} sizes for {len(arrays)} ranks: give one for each rank")
    return split(result, sizes)


def all_gather(arrays: Sequence[Array]) -> list[list[Array]]:
    """List form: out[r][s] = x[s]. Shapes may differ."""
    return [[array.copy() for array in arrays] for _ in arrays]


def all_gather_tensor(arrays: Sequence[Array]) -> list[Array]:
    """Tensor form: out[r] = x[0], x[1], ... end to end along the first dimension, which may differ between ranks."""
    for rank, array in enumerate(arrays):
        if array.ndim == 0 or (array.shape[1:], array.dtype) != (arrays[0].shape[1:], arrays[0].dtype):
            raise ValueError(
                f"rank {rank} has {array.dtype}{list(array.shape)}, rank 0 {arrays[0].dtype}{list(arrays[0].shape)}: "
                "to be put end to end, arrays need a dimension, and may differ in the first one only"
            )
    return [np.concatenate(arrays) for _ in arrays]


def scatter(lists: Sequence[Sequence[Array] | None], root: int) -> list[Array]:
    """out[r] = x[root][r]. Only the root's list counts; the others may be None."""
    check_root(root, len(lists))
    pieces = lists[root]
    if pieces is None or len(pieces) != len(lists):
        count = "no" if pieces is None else len(pieces)
        raise ValueError(f"root {root} gives {count} pieces to {len(lists)} ranks: give one for each rank")
    return [piece.copy() for piece in pieces]


def gather(arrays: Sequence[Array], root: int) -> list[list[Array] | None]:
    """out[root][s] = x[s]; None elsewhere."""
    check_root(root, len(arrays))
    return [[array.copy() for array in arrays] if rank == root else None for rank in range(len(arrays))]


def all_to_all(lists: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """out[r][s] = x[s][r]: the transpose of who has what for whom. Pieces may have any shapes."""
    check_square(lists)
    return [[pieces[rank].copy() for pieces in lists] for rank in range(len(lists))]


def on_group(collective: Callable[[list[T]], Sequence[U]], values: Sequence[T], group: Sequence[int]) -> list[T | U]:
    """out[group[i]] = collective([x[g] for g in group])[i]; ranks outside the group keep what they had, untouched.

    ``values`` holds one value per global rank, ``group`` the global ranks of its members: the rank *in the group*
    is the place in that tuple, and a root that the collective takes is such a place, not a global rank. (By default
    `torch.distributed.new_group` sorts the ranks that it is given.)
    """
    if len(set(group)) != len(group) or not set(group) <= set(range(len(values))):
        raise ValueError(f"group {tuple(group)} must hold different ranks out of 0..{len(values) - 1}")
    results: list[T | U] = list(values)
    for rank, result in zip(group, collective([values[rank] for rank in group]), strict=True):
        results[rank] = result
    return results


def volume(collective: str, elements: int, world_size: int) -> Fraction:
    """Elements per rank that a bandwidth-optimal algorithm moves, D being the elements of the whole tensor.

        broadcast                       D                what every rank but the root receives
        reduce                          (N - 1) / N D    N - 1 ranks send D each: the mean over ranks
        scatter, gather                 (N - 1) / N D    what the root sends, or receives
        reduce_scatter, all_gather      (N - 1) / N D    what every rank sends, and receives
        all_reduce                      2 (N - 1) / N D  a reduce-scatter and an all-gather

    A single rank moves nothing. (Patarasuk & Yuan, JPDC 2009, for the last two rows; the others by counting.)
    """
    check_counts(elements, world_size)
    others = Fraction(world_size - 1, world_size) * elements
    volumes = {
        "broadcast": Fraction(elements if world_size > 1 else 0),
        "reduce": others,
        "scatter": others,
        "gather": others,
        "reduce_scatter": others,
        "all_gather": others,
        "all_reduce": 2 * others,
    }
    if collective not in volumes:
        raise ValueError(f"no volume known for {collective!r}: it must be one of {', '.join(volumes)}")
    return volumes[collective]
