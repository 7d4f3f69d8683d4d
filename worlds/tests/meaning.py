"""The meaning of the collectives in `worlds.tests.commands`, told in NumPy: what each rank must see afterwards."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lockstep.worlds.contract import Array
from lockstep.worlds.tests.outcomes import call
from lockstep.worlds.tests.versions import TORCH

REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda terms: terms.sum(axis=0),
    "average": lambda terms: terms.sum(axis=0) / len(terms),
    "min": lambda terms: terms.min(axis=0),
    "max": lambda terms: terms.max(axis=0),
    "product": lambda terms: terms.prod(axis=0),
}

BITS: dict[str, np.ufunc] = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def _both(do: str, **options: Any) -> Callable[[int], list[dict[str, Any]]]:
    """Synchronous and asynchronous, on as many elements as the ranks can share."""
    return lambda size: [call(do, asynchronous=each, count=2 * size, **options) for each in (False, True)]


def _reductions(do: str) -> Callable[[int], list[dict[str, Any]]]:
    return lambda size: [call(do, reduction=reduction, count=2 * size) for reduction in REDUCTIONS]


# By name, the calls to make on so many ranks.
CASES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "all_reduce": lambda size: [call("all_reduce", reduction=r, count=n) for r in REDUCTIONS for n in (0, 1, 5)],
    "all_reduce_coalesced": _reductions("all_reduce_coalesced"),
    "all_reduce_of_a_transposed_view": _reductions("all_reduce_of_a_transposed_view"),
    "broadcast": lambda size: [call("broadcast", root=root) for root in range(size)],
    "reduce": lambda size: [call("reduce", root=root, reduction=r) for root in range(size) for r in ("sum", "max")],
    "all_gather": lambda size: [call("all_gather", count=count) for count in (1, 3)],
    "all_gather_into_tensor": lambda size: [call("all_gather_into_tensor", count=count) for count in (1, 3)],
    "all_gather_in_place": lambda size: [call("all_gather_in_place", count=count) for count in (1, 3)],
    "all_gather_object": lambda size: [call("all_gather_object")],
    "reduce_scatter": _reductions("reduce_scatter"),
    "reduce_scatter_tensor": _reductions("reduce_scatter_tensor"),
    "reduce_scatter_in_place": _reductions("reduce_scatter_in_place"),
    "barrier": lambda size: [call("barrier")],
    "reduce_bits": lambda size: [
        call("reduce_bits", reduction=bits, dtype=dtype, asynchronous=each)
        for bits in BITS
        for dtype in ("int64", "uint8")
        for each in (False, True)
    ],
    "gather": lambda size: [call("gather", root=root, asynchronous=root % 2 == 1) for root in range(size)],
    "scatter": lambda size: [
        call("scatter", root=root, count=2 * size, asynchronous=root % 2 == 0) for root in range(size)
    ],
    **{
        name: _both(name)
        for name in (
            *("all_to_all", "all_to_all_single", "all_to_all_single_uneven", "reduce_scatter_uneven"),
            *("all_gather_coalesced", "coalescing_all_reduce", "coalescing_all_gather", "coalescing_reduce_scatter"),
            *("around_the_ring", "tagged", "in_order", "batched", "from_any", "monitored_barrier"),
        )
    },
}
# gloo refuses these; nccl carries them out.
NOT_ON_GLOO = {name: _both(name) for name in ("premul_sum", "all_to_all_uneven", "all_gather_uneven")}
if TORCH < (2, 12):
    NOT_ON_GLOO["all_to_all"] = CASES.pop("all_to_all")


def expected(call: Mapping[str, Any], rank: int, size: int) -> list[Array]:
    """What the call of `worlds.tests.commands.calls` must report on a rank, in float64."""
    call = {"count": 8, "reduction": "sum", "root": 0, **call}
    by_rank = np.array([np.arange(1, call["count"] + 1) + 10.0 * other for other in range(size)])
    reduce = REDUCTIONS.get(call["reduction"], REDUCTIONS["sum"])
    match call["do"]:
        case "all_reduce":
            return [reduce(by_rank)]
        case "all_reduce_coalesced":
            second = np.array([np.arange(1, 3) + 10.0 * (other + 100) for other in range(size)])
            return [reduce(by_rank), reduce(second)]
        case "all_reduce_of_a_transposed_view":
            return [np.stack([reduce(by_rank), reduce(2 * by_rank)])]
        case "broadcast":
            return [by_rank[call["root"]]]
        case "reduce":
            return [reduce(by_rank)] if rank == call["root"] else []
        case "all_gather" | "all_gather_into_tensor" | "all_gather_in_place":
            return list(by_rank)
        case "all_gather_object":
            return [np.array([float(other)] * (other + 1)) for other in range(size)]
        case "barrier":
            return [by_rank[rank]]
        case "reduce_bits":
            whole = by_rank.astype(np.int64)
            return [BITS[call["reduction"]].reduce(whole, axis=0).astype(np.float64)]
        case "premul_sum":
            total = (0.5 * np.arange(1, size + 1)) @ by_rank
            return [total, np.split(total, size)[rank]]
        case "gather":
            return list(by_rank) if rank == call["root"] else []
        case "scatter":
            return [np.split(by_rank[call["root"]], size)[rank]]
        case "all_to_all" | "all_to_all_single":
            return [np.split(given, size)[rank] for given in by_rank]
        case "all_to_all_single_uneven" | "all_to_all_uneven":
            return [_rows_between(giver, rank, size) for giver in range(size)]
        case "all_gather_uneven":
            return [by_rank[other][:other] for other in range(size)]
        case "reduce_scatter_uneven":
            begin, length = rank * rank, size * size  # 1 + 3 + 5 + ... is a square
            total = sum((np.arange(1.0, length + 1) + 10 * other for other in range(size)), np.zeros(length))
            return [total[begin : begin + 2 * rank + 1]]
        case "all_gather_coalesced":
            return [each for other in by_rank for each in (other, 3 * other[:2])]
        case "coalescing_all_reduce":
            return [by_rank[-1], 3 * by_rank[-1][:2]]
        case "coalescing_all_gather":
            return [np.concatenate(by_rank), np.concatenate([3 * other[:2] for other in by_rank])]
        case "coalescing_reduce_scatter":
            return [np.split(scale * by_rank.sum(axis=0), size)[rank] for scale in (1, 3)]
        case "monitored_barrier":
            return [by_rank[rank]]
        case "around_the_ring" | "batched":
            return [by_rank[rank - 1]]
        case "tagged":
            return [by_rank[rank - 1], 3 * by_rank[rank - 1]]
        case "in_order":
            return [by_rank[0], 3 * by_rank[0]]
        case "from_any":
            return list(by_rank[1:]) if rank == 0 else []
        case _:
            return [np.split(reduce(by_rank), size)[rank]]


def _rows_between(giver: int, taker: int, size: int) -> Array:
    """Rank g has (g + 2 t + 1) mod 3 rows of two for rank t, numbered from 1 + 10 g on."""
    counts = [(giver + 2 * other + 1) % 3 for other in range(size)]
    begin = 2 * sum(counts[:taker])
    return (np.arange(begin, begin + 2 * counts[taker]) + 1.0 + 10 * giver).reshape(-1, 2)
