"""Which parameters share a bucket: the rules at the boundaries of the cap, and a second way to assign them."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from lockstep.impls.static_buckets import assign_buckets


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """One parameter for each number of elements."""
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def sizes(buckets: Sequence[Sequence[nn.Parameter]]) -> list[list[int]]:
    """The buckets' members by number of elements."""
    return [[member.numel() for member in bucket] for bucket in buckets]


@pytest.mark.parametrize(
    ("elements", "cap", "expected"),
    [
        ([3], 12, [[3]]),
        ([3], 11, [[3]]),  # larger than the cap: a bucket of its own
        ([3], 1, [[3]]),
        ([1, 2], 12, [[1, 2]]),  # just as large as the cap
        ([1, 2], 11, [[1], [2]]),
        ([1, 2], 13, [[1, 2]]),
        ([1, 1, 1, 1], 8, [[1, 1], [1, 1]]),
        ([2, 1, 1, 2], 12, [[2, 1], [1, 2]]),  # filled in order, not packed
        ([1, 9, 1], 8, [[1], [9], [1]]),  # nothing joins a parameter that is larger than the cap
        ([9, 1, 1], 8, [[9], [1, 1]]),
        ([0, 1, 0], 4, [[0, 1, 0]]),  # an empty parameter fits in a full bucket
        ([0, 5, 0], 4, [[0], [5], [0]]),
        ([], 4, []),
    ],
)
def test_a_bucket_takes_parameters_in_order_up_to_the_cap(
    elements: list[int], cap: int, expected: list[list[int]]
) -> None:
    assert sizes(assign_buckets(parameters(*elements), cap)) == expected


def test_each_dtype_fills_buckets_of_its_own_whatever_lies_between() -> None:
    a, b, c = parameters(1, 1, 1)
    x, y, z = parameters(1, 1, 1, dtype=torch.float64)
    assert assign_buckets([a, x, b, y, c, z], 8) == [[a, b], [x], [y], [c], [z]]
    assert assign_buckets([a, x, b, y, c, z], 16) == [[a, b, c], [x, y], [z]]


def test_a_bucket_counts_bytes_not_elements() -> None:
    assert sizes(assign_buckets(parameters(2, 2, dtype=torch.bfloat16), 8)) == [[2, 2]]
    assert sizes(assign_buckets(parameters(2, 2, dtype=torch.float64), 8)) == [[2], [2]]


@pytest.mark.parametrize("cap", [1, 4, 7, 8, 9, 16, 24, 1000])
def test_every_parameter_is_in_one_bucket_and_no_bucket_could_have_taken_the_next(cap: int) -> None:
    model = [
        p
        for pair in zip(
            parameters(3, 1, 4, 1, 5, 0, 2), parameters(1, 2, 1, 0, 3, 1, 1, dtype=torch.float64), strict=True
        )
        for p in pair
    ]
    buckets = assign_buckets(model, cap)
    members = [member for bucket in buckets for member in bucket]
    assert {id(member) for member in members} == {id(parameter) for parameter in model}
    assert len(members) == len(model)
    for dtype in (torch.float32, torch.float64):
        mine = [bucket for bucket in buckets if bucket[0].dtype is dtype]
        assert all(member.dtype is dtype for bucket in mine for member in bucket)
        flat = [member for bucket in mine for member in bucket]
        assert [id(member) for member in flat] == [id(parameter) for parameter in model if parameter.dtype is dtype]
        for bucket, following in itertools.pairwise(mine):
            size = sum(member.numel() * member.element_size() for member in bucket)
            assert size <= cap or len(bucket) == 1
            assert size + following[0].numel() * following[0].element_size() > cap


def test_a_tied_parameter_is_one_parameter() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    assert assign_buckets(list(model.parameters()), 1000) == [[first.weight]]
