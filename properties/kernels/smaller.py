"""Make a failing case of kernels smaller, one thing at a time. Hypothesis does not shrink cases made by hand."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.properties.kernels.case import Case, Tensor
from lockstep.properties.kernels.cases import EDGES
from lockstep.properties.kernels.steps import Shard
from lockstep.properties.searching.greedy import descend

MOST_RUNS = 200
LENGTHS = (*range(4), *EDGES)


def least(case: Any, fails: Callable[[Any], bool]) -> Any:
    """Reduce a failing case until nothing smaller that differs in one thing fails.

    Other values are returned unchanged.
    """
    return descend(case, _smaller, fails, MOST_RUNS)


def _smaller(case: Any) -> Iterator[Any]:
    if isinstance(case, Case):
        yield from _of_case(case)
    elif isinstance(case, Shard):
        yield from _of_shard(case)
    elif isinstance(case, Tensor):
        yield from _of_tensor(case)
    elif isinstance(case, tuple):  # a case or tensor, and further drawn values
        yield from ((smaller, *case[1:]) for smaller in _smaller(case[0]))


def _of_case(case: Case) -> Iterator[Case]:
    """Cases with fewer tensors, then with smaller ones, then with simpler arguments.

    The bucket keeps fitting its tensors.
    """
    count = len(case.tensors)
    lists = [case.tensors[begin : begin + size] for size in _halves(count) for begin in range(0, count, size)]
    lists += [case.tensors[:place] + case.tensors[place + 1 :] for place in range(count)] if count > 1 else []
    for place, tensor in enumerate(case.tensors):
        plainer = (
            [replace(tensor, dtype=case.bucket.dtype)]
            if case.bucket.count and tensor.dtype != case.bucket.dtype
            else []
        )
        lists += [(*case.tensors[:place], each, *case.tensors[place + 1 :]) for each in (*_of_tensor(tensor), *plainer)]
    for tensors in lists:
        bucket = (
            replace(case.bucket, shape=(sum(tensor.count for tensor in tensors),)) if case.bucket.count else case.bucket
        )
        yield replace(case, tensors=tensors, bucket=bucket)
    yield from _changed(case, bucket=replace(case.bucket, offset=0))
    yield from _changed(case, divisor=1.0, scale=1.0, coefficient=None, kind="distinct")
    if {tensor.dtype for tensor in case.tensors} == {case.bucket.dtype} != {"float32"}:
        alike = tuple(replace(tensor, dtype="float32") for tensor in case.tensors)
        yield replace(case, tensors=alike, bucket=replace(case.bucket, dtype="float32"))


def _of_tensor(tensor: Tensor) -> Iterator[Tensor]:
    """Tensors with fewer dimensions, fewer elements, and a plainer place in memory.

    A removed dimension takes its gap along.
    """
    order = tensor.order or tuple(reversed(range(len(tensor.shape))))
    for gone in range(len(tensor.shape)):
        kept = tuple(each - (each > gone) for each in order if each != gone) if tensor.order else ()
        shape = tensor.shape[:gone] + tensor.shape[gone + 1 :]
        steps = tuple(step for each, step in zip(order, tensor.steps, strict=False) if each != gone)
        yield replace(tensor, shape=shape, order=kept, steps=steps)
    for place, size in enumerate(tensor.shape):
        for length in _lengths(size):
            yield replace(tensor, shape=(*tensor.shape[:place], length, *tensor.shape[place + 1 :]))
    yield from _changed(tensor, offset=0, order=(), steps=(), seed=0)


def _of_shard(shard: Shard) -> Iterator[Shard]:
    """Shards with fewer elements, steps and pieces, then with plainer settings."""
    for count in _lengths(shard.count):
        yield replace(shard, count=count, cuts=tuple(min(cut, count) for cut in shard.cuts))
    yield from (replace(shard, steps=steps) for steps in range(1, shard.steps))
    yield from (replace(shard, cuts=shard.cuts[:place] + shard.cuts[place + 1 :]) for place in range(len(shard.cuts)))
    yield from _changed(shard, settings=0, coefficient=None, scale=1.0, kind="general")


def _lengths(size: int) -> Iterator[int]:
    """Shorter lengths, the shortest first: those in `LENGTHS`, a half, and one less."""
    yield from sorted({length for length in (*LENGTHS, size // 2, size - 1) if 0 <= length < size})


def _halves(count: int) -> Iterator[int]:
    """A half, a quarter and so on, down to one."""
    while count > 1:
        count = (count + 1) // 2
        yield count


def _changed(case: Any, **usual: Any) -> Iterator[Any]:
    """The case with one value replaced by its default."""
    change = partial(replace, case)
    yield from (change(**{name: value}) for name, value in usual.items() if getattr(case, name) != value)
