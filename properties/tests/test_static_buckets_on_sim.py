"""`impls.static_buckets` at work: what it sends, in which order, and what becomes of shared weights and of failures."""

import json
from typing import Any

import pytest

from lockstep.worlds.contract import Collective, Job, Outcome, World


def run(world: World, function: str, payload: Any, world_size: int = 2) -> Outcome:
    """The outcome of a rank function of `properties.tests.static_buckets`; no rank failed."""
    outcome = world.run(Job(f"lockstep.properties.tests.static_buckets:{function}", json.dumps(payload), world_size))
    assert [report.error for report in outcome] == [None] * world_size
    return outcome


def sent(outcome: Outcome) -> list[str]:
    """The all-reduces, which are the same on all ranks."""
    first, *others = ([c for c in report.collectives if c.operation == "all_reduce"] for report in outcome)
    assert all(other == first for other in others)
    return [in_words(collective) for collective in first]


def in_words(collective: Collective) -> str:
    return f"{collective.count} {collective.dtype}"


def means(outcome: Outcome, key: str = "gradients") -> list[Any]:
    """The gradients, which are the same on all ranks, as lists."""
    first, *others = (plain(report.result[key]) for report in outcome if report.result is not None)
    assert all(other == first for other in others)
    return list(first)


def plain(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, list) else None if value is None else value.tolist()


FLOATS = [(1, "float32"), (2, "float32"), (3, "float32")]
SAME = [[0, 1, 2], [0, 1, 2]]
OPPOSITE = [[0, 1, 2], [2, 1, 0]]
MEANS = [[6 + index] * size for index, (size, _) in enumerate(FLOATS)]  # of 1 + index and 11 + index


@pytest.mark.parametrize(
    ("cap", "buckets"),
    [
        (24, ["9 float32"]),  # six elements and three flags
        (23, ["7 float32", "2 float32"]),
        (20, ["7 float32", "2 float32"]),
        (19, ["4 float32", "5 float32"]),
        (12, ["4 float32", "5 float32"]),
        (11, ["4 float32", "3 float32", "2 float32"]),
        (1, ["4 float32", "3 float32", "2 float32"]),
    ],
)
@pytest.mark.parametrize("orders", [SAME, OPPOSITE])
def test_buckets_go_out_in_reverse_registration_order_at_every_cap(
    sim: World, cap: int, buckets: list[str], orders: list[list[int]]
) -> None:
    outcome = run(sim, "with_static_buckets", {"members": FLOATS, "cap": cap, "uses": [orders, orders]})
    assert sent(outcome) == buckets * 2
    assert means(outcome) == [MEANS] * 2


def test_every_dtype_has_buckets_of_its_own(sim: World) -> None:
    members = [(1, "float32"), (1, "float64"), (2, "float32"), (2, "float64")]
    outcome = run(sim, "with_static_buckets", {"members": members, "cap": 100, "uses": [[[0, 2, 1, 3], [3, 1, 2, 0]]]})
    assert sent(outcome) == ["5 float64", "5 float32"]
    assert means(outcome) == [[[6], [7], [8, 8], [9, 9]]]


def test_a_parameter_that_some_rank_used_is_averaged_over_all_and_one_that_none_used_is_left_alone(sim: World) -> None:
    uses = [[[0, 1], [1]], [[1], [1, 2]], [[0, 1, 2], [2, 1, 0]]]
    outcome = run(sim, "with_static_buckets", {"members": FLOATS, "cap": 8, "uses": uses})
    assert sent(outcome) == ["4 float32", "3 float32", "2 float32"] * 3
    assert means(outcome) == [[[0.5], [7, 7], None], [None, [7, 7], [6.5] * 3], MEANS]


def test_a_tied_weight_is_sent_once_with_the_gradients_of_both_uses(sim: World) -> None:
    outcome = run(sim, "with_tied_weights", None)
    assert sent(outcome) == ["2 float32"] * 2
    assert means(outcome) == [[[[(1 + 10 + 2 + 11) / 2]]]] * 2


@pytest.mark.parametrize("where", [2, 1, 0, "in no_sync"])
def test_a_backward_cut_short_leaves_no_trace(sim: World, where: int | str) -> None:
    outcome = run(sim, "after_a_backward_cut_short", where)
    assert means(outcome) == means(outcome, "again") == MEANS
