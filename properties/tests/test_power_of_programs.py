"""Where the oracle gives intervals, a contribution that is missing, doubled or mis-scaled still falls outside them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lockstep.oracle import interpreter
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.fingerprint import contributions
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Choices, Inside
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.independent import sample
from lockstep.properties.tests.of_scenarios import ALL


def enclosed(scenario: Scenario) -> bool:
    """True if the oracle gives intervals; without overflows, which hide whatever else is in a gradient, and without
    parameters that a step makes zero, where the quadratic probe has no gradient.
    """
    expected = interpreter.interpret(scenario, unused="untouched")
    stepped = [value for values in expected.parameters.values() for value in values]
    hides = scenario.probe == "quadratic" and any(bool((end == 0).any()) for each in stepped for end in ends(each))
    return not expected.exact and not hides and not any(batch.overflow for batch in scenario.microbatches)


def ends(value: Any) -> tuple[Any, Any]:
    """The least and the most that a value may be."""
    if isinstance(value, Inside):
        return value.low, value.high
    return np.asarray(value, dtype=np.float64), np.asarray(value, dtype=np.float64)


def certainly_differ(one: Expectation, other: Expectation) -> bool:
    """True if nothing that is right for one is right for the other: some gradient or parameter has disjoint ends."""
    for kind in ("gradients", "parameters"):
        for place, values in getattr(one, kind).items():
            for mine, theirs in zip(values, getattr(other, kind)[place], strict=True):
                if mine is None or theirs is None:
                    continue
                (low, high), (least, most) = ends(mine), ends(theirs)
                if bool(((high < least) | (most < low)).any()):
                    return True
    return False


def faulty(scenario: Scenario, factor: int, patch: pytest.MonkeyPatch) -> Iterator[Expectation]:
    """What a scenario would give if one contribution to a synchronizing micro-batch were multiplied by ``factor``."""
    right = contributions(scenario)
    for batch, event in enumerate(scenario.microbatches):
        places = [
            (parameter, *map(int, place)) for parameter, each in enumerate(right[batch]) for place in np.argwhere(each)
        ]
        for parameter, row, element in {*places[:1], *places[-1:]} if event.synchronize else ():
            wrong = [[each.copy() for each in one] for one in right]
            wrong[batch][parameter][row, element] *= factor
            with patch.context() as patched:
                patched.setattr(interpreter, "contributions", lambda _, wrong=wrong: wrong)
                try:
                    yield interpreter._interpret.__wrapped__(scenario, Choices(ALL.averaging))
                except Inexact:
                    continue  # a fault whose result rounds is not one that this can judge


@pytest.mark.parametrize(("fault", "factor"), [("missing", 0), ("doubled", 2), ("mis-scaled", 3)])
def test_a_contribution_that_is_wrong_falls_outside_of_what_is_expected(
    fault: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed: list[bool] = []
    for scenario in sample(exact_scenarios(ALL, has=("step",)).filter(enclosed), 25):
        right = interpreter.interpret(scenario, unused="untouched")
        for wrong in faulty(scenario, factor, monkeypatch):
            noticed.append(certainly_differ(right, wrong))
            assert noticed[-1], f"one {fault} contribution to {scenario} goes unnoticed"
    assert len(noticed) > 20
