"""Whatever is handed over ends in a verdict, or in one line: never in an error of Lockstep's."""

import warnings
from typing import Any

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import Unusable, as_found, look_up, try_out
from lockstep.properties.reports.matrix import PROPERTY
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import hold
from lockstep.properties.tests import oddities
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import ERROR_IN_LOCKSTEP
from lockstep.worlds.contract import World

MEAN = every_law()["test_gradients_equal_the_mean_over_ranks"]


def ends(world: World, name: str) -> tuple[str, str]:
    """How what is named ends: a verdict and the report, or nothing and the line that says why there is none."""
    try:
        (implementation,) = look_up([f"lockstep.properties.tests.oddities:{name}"], world)
        try_out([implementation], world)
    except Unusable as unusable:
        return "", str(unusable)
    filed: list[Any] = []
    report = as_found(implementation)
    under_test, record = Trial(implementation, world), lambda key, value: filed.append((key, value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            hold(MEAN, under_test, record, Budget("0", examples=3))
        except (pytest.fail.Exception, pytest.skip.Exception) as told:
            report = str(told)
    (verdict,) = (value["verdict"] for key, value in filed if key == PROPERTY)
    return verdict, report


@pytest.mark.parametrize("name", oddities.NAMES)
def test_what_is_odd_ends_in_a_verdict_or_in_one_line(sim: World, name: str) -> None:
    verdict, told = ends(sim, name)
    assert told
    assert verdict != ERROR_IN_LOCKSTEP
    assert "Traceback" not in told
    assert verdict or len(told.splitlines()) == 1
