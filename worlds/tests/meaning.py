"""The meaning of the collectives in `worlds.tests.commands`, told in NumPy: what each rank must see afterwards."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from worlds.contract import Array
from worlds.tests.outcomes import call

REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda terms: terms.sum(axis=0),
    "average": lambda terms: terms.sum(axis=0) / len(terms),
    "min": lambda terms: terms.min(axis=0),
    "max": lambda terms: terms.max(axis=0),
    "product": lambda terms: terms.prod(axis=0),
}


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
}


def expected(call: Mapping[str, Any], rank: int, size: int) -> list[Array]:
    """What the call of `worlds.tests.commands.calls` must report on a rank, in float64."""
    call = {"count": 8, "reduction": "sum", "root": 0, **call}
    by_rank = np.array([np.arange(1, call["count"] + 1) + 10.0 * other for other in range(size)])
    reduce = REDUCTIONS[call["reduction"]]
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
        case _:
            return [np.split(reduce(by_rank), size)[rank]]
