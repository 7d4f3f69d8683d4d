"""What the simulated world alone lets one choose, and what becomes of laws about it elsewhere."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.reduction_order import ORDERS, check_order
from lockstep.properties import test_asynchrony, test_mean, test_sharding
from lockstep.properties.diagnosing.confirming import confirm
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import look_up
from lockstep.properties.law import law_of
from lockstep.properties.reports.failure import report
from lockstep.properties.reports.matrix import PROPERTY, matrix, verdicts
from lockstep.properties.searching.search import Failure, search
from lockstep.properties.strategies.timing import (
    DRAWN_ORDERS,
    WAIT,
    order_by_numbers,
    order_drawn_for,
    order_of,
    tree_by_numbers,
)
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong, Wasteful
from lockstep.worlds.contract import World

MEAN = law_of(test_mean.test_gradients_equal_the_mean_over_ranks)
TIMING = law_of(test_asynchrony.test_collectives_may_read_and_write_at_any_time)


@given(drawn=DRAWN_ORDERS, elements=st.integers(0, 20), members=st.integers(1, 8))
def test_every_drawn_order_adds_every_member_once(drawn: Any, elements: int, members: int) -> None:
    order = [(lo, hi, tree) for lo, hi, tree in order_of(drawn)(elements, 4, members)]
    check_order(order, elements, members)  # type: ignore[arg-type]  # trees of two


def test_numbers_give_trees_of_any_shape() -> None:
    assert tree_by_numbers((0,), 4) == ((0, 1), (2, 3))
    assert tree_by_numbers((3, 2), 4) == (((3, 2), 1), 0)
    assert order_by_numbers((2, 0), 5, 4, 2) == [(0, 2, (0, 1)), (2, 5, (0, 1))]


def test_any_order_is_drawn_for_each_example_and_the_same_each_time() -> None:
    drawn = [order_drawn_for(str(example)) for example in range(200)]
    assert drawn == [order_drawn_for(str(example)) for example in range(200)]
    assert set(ORDERS) < set(drawn)
    assert len(set(drawn)) > 2 * len(ORDERS)


def test_what_fails_in_some_orders_alone_is_found_where_any_are_drawn_and_says_so(sim: World, gloo: World) -> None:
    (implementation,) = look_up(["lockstep.properties.tests.unsteady:WrongInSomeOrdersOfReduction"], sim)
    trial = Trial(implementation, sim, lambda: gloo)
    assert search(MEAN, trial, 50, seed_value=0).failures == []
    trial = replace(trial, any_order=True, witnessed=Counter())
    (failure,) = search(MEAN, trial, 100, seed_value=0).failures
    confirmed = confirm(MEAN, trial, failure)
    assert confirmed is not None
    assert failure.broken.scenario.world_size >= 3  # two ranks add in one way
    assert "depends on the order of reduction" in " ".join(
        report(MEAN, trial, diagnose(trial, confirmed, to_the_core=False)).split()
    )


def reports(verdicts: dict[str, str]) -> Iterator[Any]:
    for world, verdict in verdicts.items():
        filed = {"number": "P7", "law": "a law", "implementation": "mine", "world": world, "verdict": verdict}
        yield SimpleNamespace(user_properties=[(PROPERTY, filed)], when="call")


def test_the_matrix_says_where_a_law_cannot_be_had() -> None:
    (_, line) = matrix(verdicts(reports({"sim": "holds"}), [("mine", "P7", "a law", "gloo")]))
    assert line.split("  ")[-1].strip() == "holds on sim; cannot be judged on gloo"
    (_, _, line) = matrix(verdicts(reports({"sim": "holds"}), [("mine", "P8", "another", "")]))
    assert line.endswith("not claimed")


def test_a_report_on_bytes_says_why_only_sim_counts_them_and_that_the_script_does_not(sim: World) -> None:
    """That is no matter of chance."""
    law = law_of(test_sharding.test_what_is_sharded_is_held_once)
    (implementation,) = look_up(["lockstep.impls.faults.sharding:ShardsNothing"], sim)
    trial = Trial(implementation, sim)
    with pytest.raises(Wasteful) as broken:
        law.check(trial, test_sharding.OWNS_NOTHING)
    failure = confirm(law, trial, Failure(test_sharding.OWNS_NOTHING, broken.value))
    assert failure is not None
    told = " ".join(report(law, trial, diagnose(trial, failure, to_the_core=False)).split())
    assert "own threads hold tensors for some time after a wait. The script runs this program, and counts none" in told
    assert "chance" not in told


@pytest.mark.parametrize("fault", ["DropsHandles", "ClearsInFlight"])
def test_the_report_shows_the_line_that_touches_what_is_in_flight(sim: World, fault: str) -> None:
    (implementation,) = look_up([f"lockstep.impls.faults.asynchrony:{fault}"], sim)
    trial = Trial(implementation, sim)
    drawn = (test_asynchrony.SMALLEST, WAIT)
    with pytest.raises(SilentlyWrong) as broken:
        TIMING.check(trial, drawn)
    told = " ".join(report(TIMING, trial, diagnose(trial, Failure(drawn, broken.value), to_the_core=False)).split())
    assert "launched at lockstep/impls/static_buckets.py:" in told
    assert "lockstep/impls/faults/asynchrony.py:" in told
    assert "in flight" in told
