"""Combines the members' values in an order that is given as data; see `worlds.contract.Order`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from lockstep.worlds.contract import Job, OrderOf, Tree
from lockstep.worlds.sim.meeting import Flat

Combine: TypeAlias = Callable[[Flat, Flat], Flat]


class Combiner:
    """The order of additions in the reductions of one job: ``combiner(combine, inputs)`` gives their combination."""

    def __init__(self, order: OrderOf, accumulator: torch.dtype | None) -> None:
        self._order, self._accumulator = order, accumulator

    def __call__(self, combine: Combine, inputs: list[Flat]) -> Flat:
        """One flat tensor of the dtype of the inputs, which are in the order of the members."""
        own = inputs[0].dtype
        order = self._order(inputs[0].numel(), inputs[0].element_size(), len(inputs))
        _check(order, inputs[0].numel(), len(inputs))
        if self._accumulator is not None and own.is_floating_point:
            inputs = [values.to(self._accumulator) for values in inputs]
        total = torch.empty_like(inputs[0])
        for lo, hi, tree in order:
            total[lo:hi] = _fold(tree, [values[lo:hi] for values in inputs], combine)
        return total.to(own)


def combiner_of(job: Job) -> Combiner | None:
    """None where the job asks for nothing special."""
    if job.order is None and not job.accumulator:
        return None
    accumulator = getattr(torch, job.accumulator) if job.accumulator else None
    return Combiner(job.order or in_rank_order, accumulator)


def in_rank_order(elements: int, element_bytes: int, members: int) -> list[tuple[int, int, Tree]]:
    """Member 0 first, then 1, 2, ..."""
    tree: Tree = 0
    for member in range(1, members):
        tree = (tree, member)
    return [(0, elements, tree)] if elements else []


def _fold(tree: Any, inputs: Sequence[Flat], combine: Combine) -> Flat:
    if isinstance(tree, int):
        return inputs[tree]
    left, right = tree
    return combine(_fold(left, inputs, combine), _fold(right, inputs, combine))


def _check(order: Any, elements: int, members: int) -> None:
    ends = [0, *(hi for _, hi, _ in order)]
    if [lo for lo, _, _ in order] != ends[:-1] or ends[-1] != elements:
        raise ValueError(f"the order {order} must cover the elements 0..{elements} without gap or overlap")
    for _, _, tree in order:
        if sorted(_leaves(tree)) != list(range(members)):
            raise ValueError(f"the tree {tree} must have each of the members 0..{members - 1} exactly once, in pairs")


def _leaves(tree: Any) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    return [leaf for part in tree for leaf in _leaves(part)] if len(tree) == 2 else []
